// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

// A process that was paused sees at its next renewal that another process has led, even if
// that process no longer leads.
func TestLeaderEndsWhenItSeesAnother(t *testing.T) {
	for name, holder := range map[string]string{
		"another holds the Lease":        "another",
		"another has released the Lease": "",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leases{}
				leader := l.run(t, nil)
				<-leader.working
				<-time.After(time.Minute)
				taken, _ := l.left()
				taken.Spec.HolderIdentity = ptr.To(holder)
				taken.ResourceVersion += "0"
				l.replace(taken)

				select {
				case err := <-leader.done:
					if !errors.Is(err, ErrLost) {
						t.Errorf("Lead returned %v", err)
					}
				case <-time.After(timing().RetryPeriod + 1):
					t.Error("the leader continues after its next renewal")
					leader.stop()
				}
				synctest.Wait()
				if got := l.holder(); got != holder {
					t.Errorf("%q holds the Lease, want %q", got, holder)
				}
				close(leader.release)
			})
		})
	}
}

// If a process reads a Lease that is older than a Lease that it has read before, it exits, as
// leader or standby: the API server was restored from a backup, and its caches are newer.
func TestOlderLeaseEndsLeaderAndStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		leader := l.run(t, nil)
		<-leader.working
		<-time.After(time.Minute)
		backup, _ := l.left()
		standby := l.run(t, nil)
		<-time.After(time.Minute)
		backup.ResourceVersion += "0"
		l.replace(backup)
		for name, process := range map[string]*candidate{"the leader": leader, "the standby": standby} {
			select {
			case err := <-process.done:
				if !errors.Is(err, ErrRestored) {
					t.Errorf("%s: Lead returned %v", name, err)
				}
			case <-time.After(longestWait()):
				t.Errorf("%s continues", name)
				process.stop()
			}
		}
		synctest.Wait()
		close(leader.release)
		close(standby.release)
	})
}

// The caches of this process do not have the state of the API server.
func TestALeaseThatWasLostOrRestoredIsNotWritten(t *testing.T) {
	for name, change := range map[string]func(now, before *coordinationv1.Lease) *coordinationv1.Lease{
		"another holds it": func(now, _ *coordinationv1.Lease) *coordinationv1.Lease {
			now.Spec.HolderIdentity = ptr.To("another")
			return now
		},
		"it was restored from a backup": func(_, before *coordinationv1.Lease) *coordinationv1.Lease { return before },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leases{}
				held := l.open(t)
				renewed := func() resourcelock.LeaderElectionRecord {
					return resourcelock.LeaderElectionRecord{HolderIdentity: held.Identity(), RenewTime: metav1.Now()}
				}
				require.NoError(t, held.Create(t.Context(), renewed()))
				before, _ := l.left()
				<-time.After(timing().RetryPeriod)
				require.NoError(t, held.Update(t.Context(), renewed()))
				now, _ := l.left()
				changed := change(now, before)
				l.replace(changed)
				_, _, err := held.Get(t.Context())
				require.NoError(t, err)
				require.ErrorIs(t, held.Update(t.Context(), renewed()), ErrLost)
				left, _ := l.left()
				assert.Equal(t, changed, left)
				assert.Zero(t, held.Deadline())
			})
		})
	}
}

// Another process creates a Lease that was deleted, and leads at once.
func TestADeletedLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		held := l.open(t)
		record := resourcelock.LeaderElectionRecord{HolderIdentity: held.Identity(), RenewTime: metav1.Now()}
		require.NoError(t, held.Create(t.Context(), record))
		require.NotZero(t, held.Deadline())
		l.replace(nil)
		_, _, err := held.Get(t.Context())
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		assert.Zero(t, held.Deadline())
		require.ErrorIs(t, held.Create(t.Context(), record), ErrLost)
		left, _ := l.left()
		assert.Nil(t, left)
	})
}

// The clock of the next leader may be behind the clock of the former leader.
func TestClocksOfLeadersMayDiffer(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	now := renewal{transitions: 1, at: at}
	assert.False(t, renewal{transitions: 2, at: at.Add(-time.Hour)}.before(now), "the next leader")
	assert.False(t, now.before(now), "the same")
	assert.True(t, renewal{transitions: 1, at: at.Add(-1)}.before(now), "the same leader")
	assert.True(t, renewal{transitions: 0, at: at.Add(time.Hour)}.before(now), "the leader before")
}

// counter counts the requests that it receives.
type counter int

func (c *counter) RoundTrip(*http.Request) (*http.Response, error) {
	*c++
	return nil, errors.New("no server")
}

func TestNoChangeWithoutTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := (&leases{}).open(t)
		var passed counter
		transport := held.Guard(&passed)
		expect := func(when string, changes bool) {
			t.Helper()
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
				request, err := http.NewRequest(method, "http://example.test/api/v1/nodes", nil)
				require.NoError(t, err)
				before := passed
				response, err := transport.RoundTrip(request)
				if response != nil {
					_ = response.Body.Close()
				}
				want := changes || method == http.MethodGet
				assert.Equal(t, want, passed != before, "%s: %s is sent", when, method)
				assert.Equal(t, !want, errors.Is(err, ErrNotLeader), "%s: %s is refused: %v", when, method, err)
			}
		}
		renew := func(write func() error) { require.NoError(t, write()) }
		record := resourcelock.LeaderElectionRecord{HolderIdentity: held.Identity()}

		expect("before the election", false)
		renew(func() error { return held.Create(t.Context(), record) })
		expect("elected", true)
		<-time.After(timing().RenewDeadline - 1)
		expect("just before the deadline", true)
		<-time.After(1)
		expect("at the deadline", false)
		_, _, err := held.Get(t.Context())
		require.NoError(t, err)
		renew(func() error { return held.Update(t.Context(), record) })
		expect("renewed late", true)
		renew(func() error { return held.Update(t.Context(), resourcelock.LeaderElectionRecord{}) })
		expect("released", false)
		assert.False(t, isClosed(held.lost), "a release is no loss")
	})
}

// A deadline is measured from the beginning of a renewal: the API server may have stored it at
// once, however long its response took.
func TestDeadlineCountsFromTheBeginningOfARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		held := l.open(t)
		record := resourcelock.LeaderElectionRecord{HolderIdentity: held.Identity()}
		start := time.Now()
		l.delay = 3 * time.Second
		require.NoError(t, held.Create(t.Context(), record))
		assert.Equal(t, start.Add(timing().RenewDeadline), held.Deadline())
	})
}
