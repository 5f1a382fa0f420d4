// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

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

// ErrNotLeader means that a write was not sent, because the Lease was not renewed in time.
var ErrNotLeader = errors.New("the lease of the leader was not renewed in time")

// Lease is the lock of the election. It also records until when this process may act as the
// leader. The elector alone does not: a process that was paused would continue for up to the
// renew deadline beside the next leader.
type Lease struct {
	resourcelock.Interface
	name   string
	timing Timing
	// lost is closed when another process was seen to hold the Lease of this leader.
	lost chan struct{}
	// restored is closed when the Lease was seen to be older than before: it was restored from
	// a backup, and with it all objects that this process has cached.
	restored chan struct{}

	mu sync.Mutex
	// renewed is when the last renewal began, with a monotonic clock reading; zero while this
	// process does not hold the Lease.
	renewed time.Time
	// seen is the newest renewal that this process has read or written.
	seen renewal
}

// renewal identifies a version of the Lease. Times are compared only within one number of
// transitions, because each leader sets them by its own clock.
type renewal struct {
	transitions int
	at          time.Time
}

func newRenewal(record *resourcelock.LeaderElectionRecord) renewal {
	// A Lease stores microseconds
	// (https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#MicroTime).
	return renewal{record.LeaderTransitions, record.RenewTime.Truncate(time.Microsecond)}
}

func (r renewal) before(other renewal) bool {
	return r.transitions < other.transitions || r.transitions == other.transitions && r.at.Before(other.at)
}

// New returns the Lease of a namespace. The identity of this process is its host name and a
// random suffix.
func New(client coordinationv1.LeasesGetter, namespace, name string, timing Timing) (*Lease, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host name for the leader election: %w", err)
	}
	return &Lease{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: name, Namespace: namespace},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		},
		name:     name,
		timing:   timing,
		lost:     make(chan struct{}),
		restored: make(chan struct{}),
	}, nil
}

// Deadline returns until when this process may act as the leader, zero if it may not: the
// renew deadline after the beginning of the last renewal. A standby waits longer.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed.IsZero() {
		return time.Time{}
	}
	return l.renewed.Add(l.timing.RenewDeadline)
}

// Get reads the Lease. It ends the leadership if the Lease has another holder or was deleted.
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != l.Identity() {
		l.lose()
	}
	if err == nil {
		l.observe(record)
	}
	return record, raw, err
}

// observe closes restored if record is older than an earlier record.
func (l *Lease) observe(record *resourcelock.LeaderElectionRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := newRenewal(record)
	if !now.before(l.seen) {
		l.seen = now
		return
	}
	l.renewed = time.Time{}
	if !isClosed(l.restored) {
		close(l.restored)
	}
}

// Create creates the Lease, with this process as its holder.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update renews or acquires the Lease.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

// lose ends the leadership for good: decisions since the last renewal may contradict the next
// leader, even if it has resigned meanwhile.
func (l *Lease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.renewed.IsZero() {
		l.renewed = time.Time{}
		close(l.lost)
	}
}

// write writes the Lease, unless the leadership has ended.
func (l *Lease) write(record resourcelock.LeaderElectionRecord, write func() error) error {
	if isClosed(l.lost) || isClosed(l.restored) {
		return ErrLost
	}
	start := time.Now()
	if err := write(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = newRenewal(&record)
	if record.HolderIdentity == l.Identity() {
		l.renewed = start
	} else {
		l.renewed = time.Time{}
	}
	return nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Guard returns a transport that fails each change with ErrNotLeader unless this process holds
// the Lease.
func (l *Lease) Guard(transport http.RoundTripper) http.RoundTripper {
	return &guardedTransport{RoundTripper: transport, lease: l}
}

type guardedTransport struct {
	http.RoundTripper
	lease *Lease
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *guardedTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t *guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet && !time.Now().Before(t.lease.Deadline()) {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, ErrNotLeader)
	}
	return t.RoundTripper.RoundTrip(request)
}
