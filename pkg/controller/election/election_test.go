// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// renewTolerance is the tolerance that package daemon uses.
const renewTolerance = 20 * time.Second

func timing() Timing { return DefaultTiming() }

// candidate is a process that wants to lead.
type candidate struct {
	stop     context.CancelFunc
	watchdog *leaderelection.HealthzAdaptor
	// working is closed when its work begins. The work ends when its context is done
	// and release is closed.
	working, release chan struct{}
	// canceled is closed when the context of the work is done.
	canceled chan struct{}
	// failure is the result of the work.
	failure error
	// done receives the result of Lead.
	done chan error
}

// run starts a candidate.
func (l *leases) run(t *testing.T, failure error) *candidate {
	t.Helper()
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
	c := &candidate{
		stop: stop, watchdog: leaderelection.NewLeaderHealthzAdaptor(renewTolerance), failure: failure,
		working: make(chan struct{}), release: make(chan struct{}), canceled: make(chan struct{}), done: make(chan error, 1),
	}
	lease := l.open(t)
	go func() { c.done <- Lead(ctx, lease, c.watchdog, c.work) }()
	return c
}

func (c *candidate) work(ctx context.Context) error {
	close(c.working)
	if c.failure != nil {
		return c.failure
	}
	<-ctx.Done()
	close(c.canceled)
	<-c.release
	return nil
}

// end stops a candidate and waits until Lead has returned.
func (c *candidate) end(t *testing.T) {
	t.Helper()
	c.stop()
	close(c.release)
	assert.NoError(t, <-c.done, "Lead returned")
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestStandbyDoesNotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		leader := l.run(t, nil)
		<-leader.working
		standby := l.run(t, nil)
		<-time.After(time.Hour)
		if closed(standby.working) {
			t.Error("the standby works")
		}
		held := l.holder()
		standby.end(t)
		if l.holder() != held {
			t.Error("the standby took the Lease from its leader when it ended")
		}
		leader.end(t)
	})
}

func TestLeaseIsFreeOnlyWhenWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		leader := l.run(t, nil)
		<-leader.working
		standby := l.run(t, nil)
		held := l.holder()

		leader.stop()
		<-leader.canceled
		// The end of the work may take longer than a Lease lasts.
		<-time.After(time.Minute)
		if l.holder() != held || closed(standby.working) {
			t.Error("the Lease was given up while work was going on")
		}

		start := time.Now()
		leader.end(t)
		<-standby.working
		// A released Lease also lasts one second.
		if took := time.Since(start); took > time.Second+longestWait() {
			t.Errorf("the standby took over after %s", took)
		}
		standby.end(t)
		if got := l.holder(); got != "" {
			t.Errorf("%s still holds the Lease", got)
		}
	})
}

// longestWait is the longest time between two tries of a standby, to whose retry period the library
// adds up to its share leaderelection.JitterFactor.
func longestWait() time.Duration {
	return timing().RetryPeriod + time.Duration(leaderelection.JitterFactor*float64(timing().RetryPeriod))
}

func TestLeaseOfALeaderThatDiedIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		dead := l.run(t, nil)
		<-dead.working
		// A process that was killed leaves a Lease that nobody renews.
		left, _ := l.left()
		dead.end(t)
		l.put(left)

		start := time.Now()
		next := l.run(t, nil)
		<-next.working
		if took := time.Since(start); took < timing().LeaseDuration || took > timing().LeaseDuration+longestWait() {
			t.Errorf("took over after %s", took)
		}
		next.end(t)
	})
}

func TestFailedWorkFreesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		failed := errors.New("failed")
		if err := <-l.run(t, failed).done; !errors.Is(err, failed) {
			t.Errorf("Lead returned %v", err)
		}
		if got := l.holder(); got != "" {
			t.Errorf("%s holds the Lease", got)
		}
	})
}

// The API server may be down when the process exits.
func TestLeadEndsWhenTheLeaseCannotBeFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		leader := l.run(t, nil)
		<-leader.working
		l.set(hangs)
		start := time.Now()
		leader.end(t)
		if took := time.Since(start); took > 2*timing().RenewDeadline {
			t.Errorf("Lead returned after %s", took)
		}
	})
}

// If the API server does not respond, the next leader may begin as soon as the Lease has
// expired. Lead must have returned by then, whatever work does.
func TestLostLeaseEndsTheProcessBeforeAnotherMayLead(t *testing.T) {
	for name, down := range map[string]func(*http.Request) error{
		"the API server refuses":         refuses,
		"the API server does not answer": hangs,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leases{}
				leader := l.run(t, nil)
				<-leader.working
				<-time.After(time.Minute)
				l.set(down)
				if err := <-leader.done; !errors.Is(err, ErrLost) {
					t.Errorf("Lead returned %v", err)
				}
				_, renewed := l.left()
				if since := time.Since(renewed); since >= timing().LeaseDuration {
					t.Errorf("Lead returned %s after the last renewal, when another may lead", since)
				}
				synctest.Wait()
				if !closed(leader.canceled) {
					t.Error("the work was not canceled")
				}

				// If the process hangs, the liveness probe fails.
				if err := leader.watchdog.Check(nil); err != nil {
					t.Errorf("unhealthy already: %v", err)
				}
				<-time.After(timing().LeaseDuration + 2*renewTolerance)
				if leader.watchdog.Check(nil) == nil {
					t.Error("healthy long after the Lease was lost")
				}
				close(leader.release)
			})
		})
	}
}

func TestLeadRefusesDurationsThatDoNotFit(t *testing.T) {
	lease := (&leases{}).open(t)
	lease.timing.RenewDeadline = lease.timing.LeaseDuration
	err := Lead(t.Context(), lease, leaderelection.NewLeaderHealthzAdaptor(0), func(context.Context) error {
		t.Error("work was begun")
		return nil
	})
	if err == nil {
		t.Error("no error")
	}
}

// fixedCache is a cache with a constant resource version.
type fixedCache struct {
	cache.SharedIndexInformer
	version string
}

func (c fixedCache) LastSyncResourceVersion() string { return c.version }

func TestCachesMustNotBeNewerThanTheAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		cached, live string
		err          error
		failure      error
	}{
		"the same":                      {cached: "7", live: "7"},
		"an older cache":                {cached: "7", live: "10"},
		"the API server was restored":   {cached: "10", live: "7", err: ErrRestored},
		"the API server does not reply": {cached: "10", failure: assert.AnError, err: assert.AnError},
	} {
		t.Run(name, func(t *testing.T) {
			var options metav1.ListOptions
			err := CheckNotRestored(t.Context(), []CachedKind{{
				Name: "Nodes", Cache: fixedCache{version: test.cached},
				List: func(_ context.Context, o metav1.ListOptions) (metav1.ListInterface, error) {
					options = o
					return &metav1.ListMeta{ResourceVersion: test.live}, test.failure
				},
			}})
			assert.ErrorIs(t, err, test.err)
			// CheckNotRestored needs no objects, only the resource version of the list.
			assert.Equal(t, metav1.ListOptions{Limit: 1}, options)
		})
	}
}
