// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseName is the name of the Lease of the leader.
const leaseName = "nstance-operator-leader-election"

// errNotLeader is the error of a write without a Lease that was renewed in time.
var errNotLeader = errors.New("the lease of the leader was not renewed in time")

// lease is the lock of the leader, and knows until when this process may act as the
// leader. The elector alone does not: a process that was paused continues for up to the
// renew deadline beside the next leader.
type lease struct {
	resourcelock.Interface
	// validity is how long after the beginning of a renewal the process may act. A
	// standby waits longer.
	validity time.Duration
	// lost is closed when the Lease of this leader was seen to be another's.
	lost chan struct{}

	mu sync.Mutex
	// renewed is the beginning of the last renewal, with a monotonic clock reading; zero
	// while this process is not the holder of the Lease.
	renewed time.Time
	// written is the renew time in the Lease that this process has written last.
	written time.Time
}

func newLease(client coordinationv1.LeasesGetter, options *Options) (*lease, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host name for the leader election: %w", err)
	}
	return &lease{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: leaseName, Namespace: options.Namespace},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		},
		validity: options.RenewDeadline,
		lost:     make(chan struct{}),
	}, nil
}

// Deadline returns until when this process may act as the leader, zero if it may not.
func (l *lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed.IsZero() {
		return time.Time{}
	}
	return l.renewed.Add(l.validity)
}

// Get reads the Lease. One that is older than what this process has written was restored
// from a backup, as was everything else that it has cached: it must not lead on.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && (record.HolderIdentity != l.Identity() || l.isOlder(record)) {
		l.lose()
	}
	return record, raw, err
}

// isOlder reports whether record is from before the last renewal.
func (l *lease) isOlder(record *resourcelock.LeaderElectionRecord) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return record.RenewTime.Time.Before(l.written)
}

// Create creates the Lease.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update changes the Lease.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

// lose ends the leadership for good: what was decided since the last renewal may
// contradict the next leader, even if there is none any more.
func (l *lease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.renewed.IsZero() {
		l.renewed = time.Time{}
		close(l.lost)
	}
}

// write writes the Lease, unless it is lost.
func (l *lease) write(record resourcelock.LeaderElectionRecord, write func() error) error {
	if l.isLost() {
		return errLeaseLost
	}
	start := time.Now()
	if err := write(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if record.HolderIdentity == l.Identity() {
		// The API server stores microseconds.
		l.renewed, l.written = start, record.RenewTime.Truncate(time.Microsecond)
	} else {
		l.renewed = time.Time{}
	}
	return nil
}

func (l *lease) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// guard returns a transport that makes no change without the Lease.
func (l *lease) guard(transport http.RoundTripper) http.RoundTripper {
	return &guardedTransport{RoundTripper: transport, lease: l}
}

type guardedTransport struct {
	http.RoundTripper
	lease *lease
}

// WrappedRoundTripper makes the transport below visible to client-go.
func (t *guardedTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t *guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet && !time.Now().Before(t.lease.Deadline()) {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, errNotLeader)
	}
	return t.RoundTripper.RoundTrip(request)
}
