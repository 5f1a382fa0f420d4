// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/leader"
	"nstance.dev/operator/pkg/server/storage"
)

func TestTheFirstServerLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		began := time.Now().UTC()
		s := start(t, store, "one", nil)
		expectTerms(t, s, 1, true)
		_, object := readLock(t, store)
		want := `{"leaderID":"one","leaderAddr":"one:8991","lastUpdated":"` + began.Format(time.RFC3339Nano) + `"}`
		if string(object.Data) != want || !strings.HasSuffix(want, `Z"}`) {
			t.Errorf("the lock is %s, want %s", object.Data, want)
		}

		// It is renewed by the interval, and nothing else is asked.
		calls, _ := s.link.count()
		pass(100 * interval)
		expectTerms(t, s, 1, true)
		if lock, _ := readLock(t, store); !lock.LastUpdated.Equal(began.Add(100 * interval)) {
			t.Errorf("the lock is of %s, want that of 100 intervals later", lock.LastUpdated)
		}
		if now, _ := s.link.count(); now != calls+100 {
			t.Errorf("in 100 intervals the storage was called %d times", now-calls)
		}
	})
}

func TestOneOfManyLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		var servers []*server
		began := make(chan struct{})
		for i := range 5 {
			// All look at the lock before the first can take it.
			s := start(t, waitingStore{store, began}, fmt.Sprintf("s%d", i), nil)
			servers = append(servers, s)
		}
		close(began)
		pass(time.Second)
		var leads int
		lock, _ := readLock(t, store)
		for _, s := range servers {
			if s.Leading() {
				leads++
			}
			if seen, known := s.Leader(); !known || seen != lock {
				t.Errorf("takes %v for the leader, want %v", seen, lock)
			}
		}
		if leads != 1 {
			t.Errorf("%d servers lead", leads)
		}
		pass(100 * interval)
		for _, s := range servers {
			if s.terms > 1 || s.Leading() != (s.terms == 1) {
				t.Errorf("leads %v in its term %d", s.Leading(), s.terms)
			}
		}
	})
}

// waitingStore has reads that wait for began before they return.
type waitingStore struct {
	storage.Store
	began <-chan struct{}
}

func (s waitingStore) Get(ctx context.Context, key string) (storage.Object, error) {
	object, err := s.Store.Get(ctx, key)
	select {
	case <-s.began:
	case <-ctx.Done():
	}
	return object, err
}

func TestElectionsWithOtherLocksAreOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		s := start(t, store, "one", nil)
		cluster := leader.New(leader.Options{Store: store, Key: storage.ClusterLeaderKey, ID: "two", Election: election})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error)
		go func() {
			done <- cluster.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		}()
		pass(interval)
		if !s.Leading() || !cluster.Leading() {
			t.Errorf("of the two leaders one leads: %v, the other: %v", s.Leading(), cluster.Leading())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestTakeover kills the leader at various moments. Whoever waits may lead when
// nobody has renewed the lock for a timeout, and does so within two.
func TestTakeover(t *testing.T) {
	for _, election := range []config.Election{
		{Enabled: true, Interval: 5 * time.Second, Timeout: 15 * time.Second},
		{Enabled: true, Interval: time.Second, Timeout: 15 * time.Second},
		{Enabled: true, Interval: 30 * time.Millisecond, Timeout: 100 * time.Millisecond},
	} {
		for _, part := range []time.Duration{0, 1, 3, 7, 9} {
			t.Run(fmt.Sprintf("%s/%s/%d", election.Interval, election.Timeout, part), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := openStorage(t)
					first := startWith(t, store, "one", election, nil)
					pass(election.Interval * part / 10)
					second := startWith(t, store, "two", election, nil)
					pass(10*election.Interval + election.Interval*(9-part)/10)
					expectTerms(t, second, 0, false)

					lock, _ := readLock(t, store)
					first.kill()
					killed := time.Now()
					pass(time.Until(lock.LastUpdated.Add(election.Timeout)) - 1)
					expectTerms(t, second, 0, false)
					pass(time.Until(killed.Add(2 * election.Timeout)))
					expectTerms(t, second, 1, true)
				})
			})
		}
	}
}

// TestClocksOfOthers has a lock whose leader has a wrong wall clock: it is held
// for a timeout since it was seen, whatever it says of itself.
func TestClocksOfOthers(t *testing.T) {
	for _, updated := range []string{"0001-01-01T00:00:00Z", "1999-12-31T23:59:59.5+02:00", "9999-01-01T00:00:00Z"} {
		t.Run(updated, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				overwrite(t, store, `{"leaderID":"other","leaderAddr":"10.0.0.1:8991","lastUpdated":"`+updated+`","more":{}}`)
				s := start(t, store, "one", nil)
				if lock, known := s.Leader(); !known || lock.LeaderID != "other" || lock.LeaderAddr != "10.0.0.1:8991" {
					t.Errorf("the leader is %v, %v", lock, known)
				}
				pass(timeout - 1)
				expectTerms(t, s, 0, false)
				pass(1)
				expectTerms(t, s, 1, true)
			})
		})
	}
}

func TestAReleasedLockIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		mayEnd := make(chan struct{})
		first := start(t, store, "one", func(ctx context.Context) error {
			<-ctx.Done()
			<-mayEnd
			return ctx.Err()
		})
		second := start(t, store, "two", nil)
		pass(interval + time.Second)
		before, _ := readLock(t, store)

		// It waits for its own work, which has what is left of the lease.
		first.stop()
		synctest.Wait()
		if lock, _ := readLock(t, store); lock != before {
			t.Errorf("the lock is %v while the term ends, want %v", lock, before)
		}
		expectTerms(t, first, 1, true)

		close(mayEnd)
		<-first.done
		expectTerms(t, first, 1, false)
		if first.err != nil {
			t.Error(first.err)
		}
		if lock, _ := readLock(t, store); lock.LeaderID != "" || lock.LeaderAddr != "" {
			t.Errorf("the lock is %v", lock)
		}
		if lock, known := first.Leader(); known {
			t.Errorf("the leader is %v after the lock was released", lock)
		}
		pass(interval)
		expectTerms(t, second, 1, true)
	})
}

// TestATermThatDoesNotEnd stops a leader whose work goes on for ever: others need
// not wait for it.
func TestATermThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		mayEnd := make(chan struct{})
		first := start(t, store, "one", func(context.Context) error { <-mayEnd; return nil })
		second := start(t, store, "two", nil)
		pass(interval)
		first.stop()
		pass(lease)
		expectTerms(t, first, 1, false)
		pass(2 * timeout)
		expectTerms(t, second, 1, true)
		_, lock := readLock(t, store)
		close(mayEnd)
		<-first.done
		if _, now := readLock(t, store); now.ETag != lock.ETag {
			t.Errorf("the old leader changed the lock of the new one: %s", now.Data)
		}
	})
}

func TestATermThatFails(t *testing.T) {
	for _, want := range []error{errors.New("no disk"), nil} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				fail := make(chan error)
				first := start(t, store, "one", func(context.Context) error { return <-fail })
				second := start(t, store, "two", nil)
				pass(interval + time.Second)
				fail <- want
				<-first.done
				if !errors.Is(first.err, want) {
					t.Errorf("the error is %v, want %v", first.err, want)
				}
				expectTerms(t, first, 1, false)
				pass(interval)
				expectTerms(t, second, 1, true)
			})
		})
	}
}

// TestAFormerLife starts a server again that was killed while it led.
func TestAFormerLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		second := start(t, store, "two", nil)
		pass(interval)
		first.kill()
		pass(time.Second)
		expectTerms(t, start(t, store, "one", nil), 1, true)
		pass(10 * timeout)
		expectTerms(t, second, 0, false)
	})
}

func expectPredecessor(t *testing.T, s *server, terms int, want string) {
	t.Helper()
	expectTerms(t, s, terms, true)
	if got := s.Predecessor(); got != want {
		t.Errorf("the predecessor is %q, want %q", got, want)
	}
}

// TestPredecessor: a server that is followed by itself may go by what it knew.
func TestPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		expectPredecessor(t, first, 1, "")
		first.stop()
		<-first.done
		first = start(t, store, "one", nil)
		expectPredecessor(t, first, 1, "one")

		// Others that only look on, and faults that they do not make use of, are
		// nobody's terms.
		pass(interval + time.Second)
		second := start(t, store, "two", nil)
		first.link.set(down)
		pass(lease)
		expectTerms(t, first, 1, false)
		first.link.set(working)
		pass(interval)
		expectPredecessor(t, first, 2, "one")

		first.kill()
		pass(2 * timeout)
		expectPredecessor(t, second, 1, "one")
		second.stop()
		<-second.done
		first = start(t, store, "one", nil)
		expectPredecessor(t, first, 1, "two")

		// Without a lock nobody knows, nor when another make of server released it.
		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		pass(interval)
		expectPredecessor(t, first, 2, "")
		overwrite(t, store, `{"leaderID":"","leaderAddr":"","lastUpdated":"2026-01-01T00:00:00Z"}`)
		pass(interval)
		expectPredecessor(t, first, 3, "")
	})
}

// TestALockThatCannotBeRead: the leader may be alive, and is the only one that
// can make it good.
func TestALockThatCannotBeRead(t *testing.T) {
	for _, data := range []string{"", " ", "null", "{}", "[]", "{", `"one"`, "\x00\xff", `{"leaderID":null}`, `{"leaderID":7}`,
		`{"leaderID":""}}`, `{"leaderID":"","lastUpdated":"yesterday"}`, `{"leaderAddr":"x:1","lastUpdated":"2026-01-01T00:00:00Z"}`} {
		t.Run(data, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				overwrite(t, store, data)
				logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
				elector := leader.New(leader.Options{Store: store, Key: key, ID: "one", Election: election})
				ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
				done := make(chan error)
				go func() {
					done <- elector.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
				}()
				pass(timeout - 1)
				if lock, known := elector.Leader(); known || elector.Leading() {
					t.Errorf("leads %v, the leader is %v", elector.Leading(), lock)
				}
				log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
				if strings.Count(log, "\n") != 1 || !strings.Contains(log, "Cannot read the lock") {
					t.Errorf("the log is\n%s", log)
				}
				pass(1)
				if !elector.Leading() {
					t.Error("does not lead after a timeout")
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestADeletedLock: the leader leads until it finds out, so the others wait as if
// the lock was there.
func TestADeletedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(time.Second)
		second := start(t, store, "two", nil)
		pass(3*interval + 2*time.Second)
		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		pass(interval)
		expectTerms(t, second, 0, false)
		expectTerms(t, first, 2, true)

		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		first.kill()
		pass(2 * timeout)
		expectTerms(t, second, 1, true)
	})
}

func TestWithoutElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		s := startWith(t, store, "one", config.Election{}, nil)
		pass(time.Hour)
		expectPredecessor(t, s, 1, "one")
		if lock, known := s.Leader(); !known || lock.LeaderID != "one" || lock.LeaderAddr != "one:8991" {
			t.Errorf("the leader is %v, %v", lock, known)
		}
		if _, err := s.Fence(store).Create(t.Context(), "some/object", nil); err != nil {
			t.Error(err)
		}
		ctx, cancel := s.Context(t.Context())
		if _, bounded := ctx.Deadline(); bounded || ctx.Err() != nil {
			t.Errorf("a call has a deadline: %v, %v", bounded, ctx.Err())
		}
		cancel()
		if calls, _ := s.link.count(); calls != 0 {
			t.Errorf("there were %d calls to the storage", calls)
		}
		s.stop()
		<-s.done
		if s.err != nil {
			t.Error(s.err)
		}
		broken := errors.New("broken")
		s = startWith(t, store, "one", config.Election{}, func(context.Context) error { return broken })
		<-s.done
		if !errors.Is(s.err, broken) {
			t.Errorf("the error is %v, want %v", s.err, broken)
		}
	})
}

func TestAServerNeedsAnID(t *testing.T) {
	elector := leader.New(leader.Options{Store: openStorage(t), Key: key, Election: election})
	if err := elector.Run(t.Context(), nil); err == nil {
		t.Error("a server without an id stands for election")
	}
}
