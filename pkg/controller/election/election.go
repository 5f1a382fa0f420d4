// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package election elects a leader among the replicas of an operator, and fences the requests
// of a former leader.
package election

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ErrLost makes the process exit, because another process may be the leader.
var ErrLost = errors.New("leader election lost")

// Lead runs work while this process is the leader, and returns when ctx is done. It stops work
// first and waits for it, so that the Lease is released only when this process sends no more
// requests. When the Lease is lost, or has another holder, Lead returns at once without
// waiting, and the process must exit.
func Lead(ctx context.Context, lock *Lease, watchdog *leaderelection.HealthzAdaptor, work func(context.Context) error) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "identity", lock.Identity())

	started, stopped := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          lock.name,
		Lock:          lock,
		LeaseDuration: lock.timing.LeaseDuration,
		RenewDeadline: lock.timing.RenewDeadline,
		RetryPeriod:   lock.timing.RetryPeriod,
		// ReleaseOnCancel would also release a Lease that could not be renewed, and call
		// OnStoppedLeading only after that attempt
		// (https://pkg.go.dev/k8s.io/client-go/tools/leaderelection). Until then work would
		// run beside the work of the next leader.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) },
			OnStoppedLeading: func() { close(stopped) },
			OnNewLeader: func(leader string) {
				logger.Info("Leader elected", "leader", leader, "self", leader == lock.Identity())
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election: %w", err)
	}

	watchdog.SetLeaderElection(elector)

	// The elector outlives ctx, because it is stopped last.
	electorCtx, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	go elector.Run(electorCtx)

	select {
	case <-started:
	case <-stopped:
		return ErrLost
	case <-lock.restored:
		return ErrRestored
	case <-ctx.Done():
		resign()
		<-stopped
		release(electorCtx, lock, lock.timing.RenewDeadline)
		return nil
	}

	workCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- work(workCtx) }()

	select {
	case <-stopped:
		return ErrLost
	case <-lock.lost:
		return ErrLost
	case <-lock.restored:
		return ErrRestored
	case err = <-finished:
	}
	resign()
	<-stopped
	release(electorCtx, lock, lock.timing.RenewDeadline)
	return err
}

// release releases the Lease if this process is its holder, so that a standby need not
// wait until it expires. Nothing else may use lock any more.
func release(ctx context.Context, lock resourcelock.Interface, timeout time.Duration) {
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			logger.Error(err, "Cannot read the Lease, it will expire", "lease", lock.Describe())
		}
		return
	}
	if record.HolderIdentity != lock.Identity() {
		return
	}
	now := metav1.Now()
	err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1,
		AcquireTime:          now,
		RenewTime:            now,
		LeaderTransitions:    record.LeaderTransitions,
	})
	if err != nil {
		logger.Error(err, "Cannot release the Lease, it will expire", "lease", lock.Describe())
	}
}

// Timing has the three settings of client-go's leader election
// (https://pkg.go.dev/k8s.io/client-go/tools/leaderelection#LeaderElectionConfig).
type Timing struct {
	// LeaseDuration is how long a standby waits for a silent leader, RenewDeadline how long
	// a leader tries to renew, and RetryPeriod the time between two tries.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// DefaultTiming returns the defaults of the flags.
func DefaultTiming() Timing {
	return Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 800 * time.Millisecond}
}

// AddFlags adds a flag for each setting.
func (t *Timing) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&t.LeaseDuration, "leader-elect-lease-duration", t.LeaseDuration, "how long a standby waits for a silent leader")
	flags.DurationVar(&t.RenewDeadline, "leader-elect-renew-deadline", t.RenewDeadline, "how long a leader tries to renew before it gives up")
	flags.DurationVar(&t.RetryPeriod, "leader-elect-retry-period", t.RetryPeriod, "how long to wait between two tries to get or renew the lease")
}

// Validate calls refuse for every wrong setting, with the name of its flag.
func (t *Timing) Validate(refuse func(flag, format string, args ...any)) {
	if t.RetryPeriod <= 0 {
		refuse("leader-elect-retry-period", "%s must be more than 0", t.RetryPeriod)
	}
	// client-go requires this, because it adds jitter to the retry period.
	if least := time.Duration(leaderelection.JitterFactor * float64(t.RetryPeriod)); t.RenewDeadline <= least {
		refuse("leader-elect-renew-deadline", "%s must be more than %s, the retry period and a fifth", t.RenewDeadline, least)
	}
	// The Lease stores its duration in seconds.
	if t.LeaseDuration < time.Second {
		refuse("leader-elect-lease-duration", "%s must be at least 1s", t.LeaseDuration)
	}
	if t.LeaseDuration <= t.RenewDeadline {
		refuse("leader-elect-lease-duration", "%s must be more than the renew deadline %s", t.LeaseDuration, t.RenewDeadline)
	}
}

// podNamespaceFile contains the namespace of the Pod
// (https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/).
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// PodNamespace returns the namespace of the Pod of this process.
func PodNamespace() (string, error) {
	namespace, err := os.ReadFile(podNamespaceFile)
	if err != nil {
		return "", fmt.Errorf("--namespace is not set and the Pod's own cannot be read: %w", err)
	}
	return strings.TrimSpace(string(namespace)), nil
}

// ErrRestored means that the caches of this process are newer than the API server.
var ErrRestored = errors.New("the API server was restored from a backup that is older than the caches of this process")

// CachedKind is a kind whose cache can be compared with the API server.
type CachedKind struct {
	Name  string
	Cache cache.SharedIndexInformer
	// List reads the newest state.
	List func(context.Context, metav1.ListOptions) (metav1.ListInterface, error)
}

// Lister adapts the list function of a typed client to CachedKind.List.
func Lister[List metav1.ListInterface](list func(context.Context, metav1.ListOptions) (List, error)) func(context.Context, metav1.ListOptions) (metav1.ListInterface, error) {
	return func(ctx context.Context, options metav1.ListOptions) (metav1.ListInterface, error) {
		return list(ctx, options)
	}
}

// CheckNotRestored returns ErrRestored if a cache has a resource version that the API server
// has not reached. The watch of this cache is silent until the server reaches it, and a new
// leader would act on a state that no longer exists.
func CheckNotRestored(ctx context.Context, kinds []CachedKind) error {
	for _, kind := range kinds {
		cached := kind.Cache.LastSyncResourceVersion()
		list, err := kind.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Name, err)
		}
		order, err := resourceversion.CompareResourceVersion(cached, list.GetResourceVersion())
		if err != nil {
			return fmt.Errorf("compare the cache of %s with the API server: %w", kind.Name, err)
		}
		if order > 0 {
			return fmt.Errorf("%w: %s are cached as of resource version %s, the API server has %s",
				ErrRestored, kind.Name, cached, list.GetResourceVersion())
		}
	}
	return nil
}
