// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// watcher serves shard "a" from a peer, on a fake clock.
type watcher struct {
	*Notices
	t      *testing.T
	client nstancev1.OperatorServiceClient
	stop   func(cause error)

	mu    sync.Mutex
	lines []string
}

func withWatcher(t *testing.T, p *peer, test func(t *testing.T, w *watcher)) {
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{Notices: NewNotices(), t: t, client: p.serve(t)}
		w.AddHandler(shard.NoticeHandler{})
		w.AddHandler(shard.NoticeHandler{
			OnInstance: func(shard, id string) {
				state := "removed"
				if notice, ok := w.Get(shard, id); ok {
					state = string(notice.State)
				}
				w.record(id + " " + state)
			},
			OnShard: func(shard string) { w.record(fmt.Sprintf("settled %t", w.Settled(shard))) },
		})
		w.start()
		test(t, w)
		w.stop(nil)
	})
}

// start calls Serve. Serve has returned when stop returns.
func (w *watcher) start() {
	ctx, cancel := context.WithCancelCause(klog.NewContext(w.t.Context(), ktesting.NewLogger(w.t, ktesting.NewConfig())))
	done := make(chan struct{})
	go func() {
		w.Serve(ctx, "a", w.client)
		close(done)
	}()
	w.stop = func(cause error) {
		cancel(cause)
		<-done
	}
	synctest.Wait()
}

func (w *watcher) record(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
}

// expect compares the calls of the handlers since the last comparison.
func (w *watcher) expect(when string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Equal(w.t, want, w.lines, "%s: handled", when)
	w.lines = nil
}

// expectInAnyOrder compares the calls without their order.
func (w *watcher) expectInAnyOrder(when string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.ElementsMatch(w.t, want, w.lines, "%s: handled", when)
	w.lines = nil
}

func drain(id string) *nstancev1.InstanceEvent { return event(id, shard.Draining) }

func event(id string, state shard.NoticeState) *nstancev1.InstanceEvent {
	return &nstancev1.InstanceEvent{InstanceId: id, Status: string(state), Group: "workers"}
}

func drains(ids ...string) []*nstancev1.InstanceEvent {
	var events []*nstancev1.InstanceEvent
	for _, id := range ids {
		events = append(events, drain(id))
	}
	return events
}

func TestWatchSettlesAfterItsSnapshot(t *testing.T) {
	p := &peer{drains: drains("i1", "i2")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		w.expect("at first", "i1 pending_deletion", "i2 pending_deletion")
		if w.Settled("a") || w.Session("a") != 0 {
			t.Errorf("at first: settled %t, session %d", w.Settled("a"), w.Session("a"))
		}
		<-time.After(1900 * time.Millisecond)
		w.expect("before 2 s")
		<-time.After(200 * time.Millisecond)
		w.expect("after 2 s", "settled true")
		if w.Session("a") == 0 {
			t.Error("the session has no number")
		}
		if got := w.List("a"); len(got) != 2 || got[0].InstanceID != "i1" || got[1].InstanceID != "i2" {
			t.Errorf("the cache has %+v", got)
		}
		if w.Settled("b") || w.Session("b") != 0 || w.List("b") != nil {
			t.Error("a shard that is not served has settled")
		}
	})
}

func TestEventsDelaySettlingUpToATimeout(t *testing.T) {
	p := &peer{}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		for n := range 3 {
			<-time.After(1500 * time.Millisecond)
			p.instances <- drain(fmt.Sprint("i", n))
		}
		w.expect("with events", "i0 pending_deletion", "i1 pending_deletion", "i2 pending_deletion")
		<-time.After(2100 * time.Millisecond)
		w.expect("2 s later", "settled true")

		p.instances <- nil
		w.expect("lost", "settled false")
		start := time.Now()
		for !w.Settled("a") && time.Since(start) < time.Minute {
			<-time.After(time.Second)
			select {
			case p.instances <- drain("i0"):
			case <-time.After(time.Second):
			}
			synctest.Wait()
		}
		if got := time.Since(start); got < 10*time.Second || got > 15*time.Second {
			t.Errorf("on a busy shard it took %v to settle", got)
		}
	})
}

func TestWithdrawnDrainIsDroppedWhenTheWatchSettles(t *testing.T) {
	p := &peer{drains: drains("stays", "withdrawn")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "stays pending_deletion", "withdrawn pending_deletion", "settled true")
		before, session := w.List("a"), w.Session("a")
		p.change(func() { p.drains = drains("stays") })
		p.instances <- nil
		w.expect("lost", "settled false")
		<-time.After(2 * time.Second)
		w.expect("opened again", "stays pending_deletion")
		if got := w.Session("a"); got != session {
			t.Errorf("before it has settled the session is %d, want %d as before", got, session)
		}
		<-time.After(2 * time.Second)
		w.expect("settled again", "withdrawn removed", "settled true")
		after := w.List("a")
		if len(after) != 1 || after[0].Announced <= before[0].Announced {
			t.Errorf("announced again, the cache has %+v", after)
		}
		if got := w.Session("a"); got <= session {
			t.Errorf("the session is %d after %d", got, session)
		}

		// If the drain is announced again, it must differ from the acknowledged drain.
		p.instances <- drain("withdrawn")
		w.expect("announced again", "withdrawn pending_deletion")
		if got, _ := w.Get("a", "withdrawn"); got.Announced <= before[1].Announced {
			t.Errorf("announced %d after %d", got.Announced, before[1].Announced)
		}
	})
}

func TestLostWatchDropsNothing(t *testing.T) {
	p := &peer{drains: drains("i")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "i pending_deletion", "settled true")
		p.change(func() { p.instancesErr = status.Error(codes.Unavailable, "no leader") })
		p.instances <- nil
		<-time.After(time.Hour)
		w.expect("in an hour", "settled false")
		p.change(func() {
			if p.instanceWatches < 100 || p.instanceWatches > 500 {
				t.Errorf("%d watches in an hour", p.instanceWatches)
			}
			p.instancesErr = nil
		})
		<-time.After(25 * time.Second)
		w.expect("at last", "i pending_deletion", "settled true")
	})
}

// The streams of a server that hangs can be opened, but receive no event.
func TestServerThatHangsDoesNotSettle(t *testing.T) {
	p := &peer{drains: drains("i")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "i pending_deletion", "settled true")
		block := make(chan struct{})
		p.change(func() { p.drains, p.blockStatus = nil, block })
		p.instances <- nil
		<-time.After(time.Hour)
		w.expect("in an hour", "settled false")
		if _, ok := w.Get("a", "i"); !ok {
			t.Error("the drain was dropped")
		}
		// The server replies late, for a watch that is not open any more.
		for requests := p.requests(); p.requests() == requests; {
			<-time.After(100 * time.Millisecond)
		}
		p.change(func() { p.blockStatus = nil })
		p.instances <- nil
		<-time.After(900 * time.Millisecond)
		p.instances <- drain("other")
		w.expect("opened again", "other pending_deletion")
		close(block)
		w.expect("replied too late")
		<-time.After(1900 * time.Millisecond)
		w.expect("before it may settle")
		<-time.After(200 * time.Millisecond)
		w.expect("settled", "i removed", "settled true")
	})
}

func TestReplyDoesNotCoverEventsAfterTheRequest(t *testing.T) {
	p := &peer{}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		first, second, third := make(chan struct{}), make(chan struct{}), make(chan struct{})
		p.change(func() { p.blockStatus = first })
		<-time.After(3 * time.Second)
		p.instances <- drain("i")
		w.expect("during the request", "i pending_deletion")
		close(first)
		w.expect("replied after an event")
		p.change(func() { p.blockStatus = second })
		<-time.After(1900 * time.Millisecond)
		w.expect("before another 2 s")
		<-time.After(200 * time.Millisecond)
		if got := p.requests(); got != 2 {
			t.Errorf("%d requests, want another after 2 s", got)
		}

		// The watch was opened again, and has been quiet for long enough.
		p.change(func() { p.blockStatus = third })
		p.instances <- nil
		<-time.After(4 * time.Second)
		close(second)
		w.expect("replied for the previous watch")
		close(third)
		w.expect("replied for this watch", "i removed", "settled true")
	})
}

func TestHandlersReceiveEachAnnouncement(t *testing.T) {
	p := &peer{}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		var last int64
		w.expect("at first", "settled true")
		for range 3 {
			p.instances <- drain("i")
			w.expect("announced", "i pending_deletion")
			got, _ := w.Get("a", "i")
			if got.Announced <= last {
				t.Errorf("announced %d after %d", got.Announced, last)
			}
			last = got.Announced
		}
		p.instances <- event("i", shard.Deleting)
		p.instances <- drain("i")
		p.instances <- event("i", shard.Deleted)
		w.expect("deleted", "i deleting", "i deleted")
	})
}

func TestInvalidEventsAreIgnored(t *testing.T) {
	p := &peer{}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "settled true")
		p.instances <- drain("")
		p.instances <- event("i", "resting")
		p.instances <- event("i", "")
		p.instances <- drain("i")
		w.expect("afterwards", "i pending_deletion")
		if got := len(w.List("a")); got != 1 {
			t.Errorf("%d notices", got)
		}
	})
}

func TestUnimplementedWatchOfInstancesIsRetriedRarely(t *testing.T) {
	p := &peer{instancesErr: status.Error(codes.Unimplemented, "method WatchInstances not implemented")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(time.Hour)
		w.expect("in an hour")
		if w.Settled("a") || w.Session("a") != 0 {
			t.Error("it has settled")
		}
		p.change(func() {
			if p.instanceWatches < 12 || p.instanceWatches > 13 {
				t.Errorf("%d watches in an hour, want one every 5 minutes", p.instanceWatches)
			}
			p.instancesErr, p.drains = nil, drains("i")
		})
		// The server was replaced by a server that implements the method.
		<-time.After(5*time.Minute + 3*time.Second)
		w.expect("at last", "i pending_deletion", "settled true")
	})
}

func TestNoticesOfDeletionsExpire(t *testing.T) {
	p := &peer{drains: drains("draining")}
	withWatcher(t, p, func(_ *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		p.instances <- event("deleting", shard.Deleting)
		p.instances <- event("deleted", shard.Deleted)
		w.expect("at first", "draining pending_deletion", "settled true", "deleting deleting", "deleted deleted")
		<-time.After(8 * time.Minute)
		w.expect("after 8 minutes")
		<-time.After(3*time.Minute + 5*time.Second)
		// The watch is opened again meanwhile, after 9 to 11 minutes.
		w.expectInAnyOrder("after 11 minutes", "settled false", "draining pending_deletion", "settled true", "deleted removed", "deleting removed")
	})
}

func TestNoticesOfARemovedShardAreDropped(t *testing.T) {
	p := &peer{drains: drains("i1", "i2")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "i1 pending_deletion", "i2 pending_deletion", "settled true")
		before, _ := w.Get("a", "i1")
		session := w.Session("a")

		w.stop(nil)
		w.expect("moved", "settled false")
		if len(w.List("a")) != 2 || w.Session("a") != session {
			t.Errorf("the move leaves %v and session %d", w.List("a"), w.Session("a"))
		}
		p.change(func() { p.drains = drains("i1") })
		w.start()
		<-time.After(3 * time.Second)
		w.expect("at the new address", "i1 pending_deletion", "i2 removed", "settled true")

		session = w.Session("a")
		w.stop(shard.ErrRemoved)
		w.expect("removed", "i1 removed", "settled false")
		if w.List("a") != nil || w.Settled("a") || w.Session("a") != 0 {
			t.Error("something is left of the shard")
		}

		w.start()
		if w.Settled("a") || w.Session("a") != 0 {
			t.Error("it has settled at once")
		}
		<-time.After(3 * time.Second)
		w.expect("back", "i1 pending_deletion", "settled true")
		if after, _ := w.Get("a", "i1"); after.Announced <= before.Announced || w.Session("a") <= session {
			t.Errorf("announced %d after %d, session %d after %d", after.Announced, before.Announced, w.Session("a"), session)
		}
	})
}

// A server may send nothing more to a client after another client has connected.
func TestWatchOfInstancesIsOpenedAgain(t *testing.T) {
	p := &peer{drains: drains("i1")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "i1 pending_deletion", "settled true")
		p.change(func() { p.drains = drains("i2") })
		session := w.Session("a")
		<-time.After(11*time.Minute + 3*time.Second)
		w.expect("after 11 minutes", "settled false", "i2 pending_deletion", "i1 removed", "settled true")
		if w.Session("a") <= session {
			t.Error("the session is the same")
		}
		p.instances <- event("i2", shard.Deleted)
		w.expect("from the other watch", "i2 deleted")
		<-time.After(24 * time.Hour)
		p.change(func() {
			if p.instanceWatches < 24*6-15 || p.instanceWatches > 24*6+15 {
				t.Errorf("%d watches in a day, want one every 10 minutes", p.instanceWatches)
			}
			if p.mostInstanceWatches != 2 || p.openInstanceWatches != 1 {
				t.Errorf("at most %d watches were open at a time, and %d are, want the next before the last is closed", p.mostInstanceWatches, p.openInstanceWatches)
			}
			if p.overlap != 2*time.Second {
				t.Errorf("two watches were open for %s", p.overlap)
			}
		})
	})
}
