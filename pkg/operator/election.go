// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// leaseName is the Lease that the leader holds.
const leaseName = "nstance-operator-leader-election"

// errLeaseLost ends the process: another one may lead by now.
var errLeaseLost = errors.New("leader election lost")

// lead runs work while this process holds the Lease, and returns when ctx ends.
// Then work is ended first and waited for, so that the Lease is free only when
// nothing of ours runs any more. When the Lease is lost lead returns at once,
// without waiting, and the process must exit.
func lead(ctx context.Context, client kubernetes.Interface, options *Options, watchdog *leaderelection.HealthzAdaptor, work func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host name for the leader election: %w", err)
	}
	identity := host + "_" + string(uuid.NewUUID())
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "identity", identity)

	started, stopped := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: leaseName, Namespace: options.Namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration:   options.LeaseDuration,
		RenewDeadline:   options.RenewDeadline,
		RetryPeriod:     options.RetryPeriod,
		ReleaseOnCancel: true,
		WatchDog:        watchdog,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) },
			OnStoppedLeading: func() { close(stopped) },
			OnNewLeader: func(leader string) {
				logger.Info("Leader elected", "leader", leader, "self", leader == identity)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the leader election: %w", err)
	}

	// The elector outlives ctx: it is ended last.
	electorCtx, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	go elector.Run(electorCtx)

	select {
	case <-started:
	case <-stopped:
		return errLeaseLost
	case <-ctx.Done():
		resign()
		<-stopped
		return nil
	}

	workCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- work(workCtx) }()

	select {
	case <-stopped:
		return errLeaseLost
	case err = <-finished:
	}
	resign()
	<-stopped
	return err
}
