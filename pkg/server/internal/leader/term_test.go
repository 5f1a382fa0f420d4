// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/internal/leader"
)

// TestStorageOutage checks that a leader that cannot renew stops before another server may
// take over, that no server leads during the outage, and that a server leads afterwards.
func TestStorageOutage(t *testing.T) {
	for name, fault := range map[string]fault{"down": down, "hanging": hanging, "paused": paused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				first := start(t, store, "one", nil)
				second := start(t, store, "two", nil)
				pass(3*interval + time.Second)
				first.link.set(fault)
				second.link.set(fault)
				pass(lease - time.Second - 1)
				expectTerms(t, first, 1, true)
				if first.term.Err() != nil {
					t.Fatal(first.term.Err())
				}
				pass(1)
				expectTerms(t, first, 1, false)
				if cause := context.Cause(first.term); !errors.Is(cause, leader.ErrNotLeading) {
					t.Errorf("the term was canceled because of %v", cause)
				}

				pass(time.Hour)
				expectTerms(t, first, 1, false)
				expectTerms(t, second, 0, false)

				first.link.set(working)
				second.link.set(working)
				pass(2 * timeout)
				if first.Leading() == second.Leading() {
					t.Errorf("the first leads: %v, the second: %v", first.Leading(), second.Leading())
				}
			})
		})
	}
}

// TestShortFaults checks that faults that are over before the lease expires
// have no effect, even if it is unknown which renewals succeeded.
func TestShortFaults(t *testing.T) {
	for name, fault := range map[string]fault{"down": down, "hanging": hanging, "paused": paused, "mute": mute, "late": late} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, openStorage(t), "one", nil)
				for range 10 {
					pass(interval - time.Millisecond)
					s.link.set(fault)
					pass(2 * time.Second)
					s.link.set(working)
					pass(3*time.Second + time.Millisecond)
					pass(interval)
				}
				expectTerms(t, s, 1, true)
				if s.term.Err() != nil {
					t.Error(s.term.Err())
				}
			})
		})
	}
}

// TestRetries counts the attempts to renew: at once, after 100 ms and after a
// second.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, openStorage(t), "one", nil)
		s.link.set(down)
		before, _ := s.link.count()
		pass(interval)
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 2}, {100*time.Millisecond - 1, 2}, {1, 3}, {time.Second - 1, 3}, {1, 4}, {time.Second - 1, 4}, {1, 5}} {
			pass(step.wait)
			if calls, _ := s.link.count(); calls != before+step.want {
				t.Fatalf("%v later there were %d attempts, want %d", step.wait, calls-before, step.want)
			}
		}
		s.link.set(working)
		pass(time.Second)
		expectTerms(t, s, 1, true)
		// The next attempt is an interval after the successful attempt.
		before, _ = s.link.count()
		pass(interval - 1)
		if calls, _ := s.link.count(); calls != before {
			t.Errorf("the lock was renewed %d times within an interval", calls-before)
		}
		pass(1)
		if calls, _ := s.link.count(); calls != before+1 {
			t.Errorf("the lock was renewed %d times after an interval", calls-before)
		}
	})
}

// TestLeaseBeginsBeforeTheWrite checks that a renewal with a late answer counts
// from when it was begun.
func TestLeaseBeginsBeforeTheWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, openStorage(t), "one", nil)
		pass(interval - 1)
		s.link.set(hanging)
		pass(1 + 2*time.Second)
		s.link.set(working) // The renewal that was begun 2 s ago succeeds.
		synctest.Wait()
		s.link.set(down)
		// The next renewal is an interval after the beginning of that renewal, too.
		before, _ := s.link.count()
		pass(interval - 2*time.Second - 1)
		if calls, _ := s.link.count(); calls != before {
			t.Errorf("the lock was renewed %d times within an interval", calls-before)
		}
		pass(1)
		if calls, _ := s.link.count(); calls == before {
			t.Error("the lock was not renewed after an interval")
		}
		pass(lease - interval - 1)
		expectTerms(t, s, 1, true)
		pass(1)
		expectTerms(t, s, 1, false)
	})
}

// TestExpiredLeaseIsNotRenewed uses an answer that arrives after the lease has
// expired, but within the lease that the write would have begun.
func TestExpiredLeaseIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mayReturn := make(chan struct{})
		release := make(chan struct{})
		s := start(t, slowWrites(openStorage(t), release), "one", func(ctx context.Context) error {
			<-ctx.Done()
			await(t, mayReturn)
			return ctx.Err()
		})
		pass(lease)
		expectTerms(t, s, 1, false)
		close(release)
		pass(time.Second)
		expectTerms(t, s, 1, false)
		close(mayReturn)
		synctest.Wait()
		expectTerms(t, s, 2, true)
	})
}

// TestTakeoverThatIsTooSlow uses a write whose lease has expired before the
// answer arrives.
func TestTakeoverThatIsTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		overwrite(t, store, `{"leaderID":"other"}`)
		release := make(chan struct{})
		s := start(t, slowWrites(store, release), "one", nil)
		pass(timeout + lease)
		close(release)
		synctest.Wait()
		if lock, _ := readLock(t, store); lock.LeaderID != "one" {
			t.Fatalf("the lock is %v", lock)
		}
		expectTerms(t, s, 0, false)
		pass(interval)
		expectTerms(t, s, 1, true)
	})
}

// TestLockReplacedByAnotherServer checks that a server that finds another
// server's lock when it renews does not lead any more, and does not try to
// acquire the lock before its work has returned.
func TestLockReplacedByAnotherServer(t *testing.T) {
	for name, force := range map[string]string{
		"another leader": `{"leaderID":"other","leaderAddr":"other:1","lastUpdated":"2026-01-01T00:00:00Z"}`,
		"its own id":     `{"leaderID":"one","leaderAddr":"one:8991","lastUpdated":"2026-01-01T00:00:00Z"}`,
		"released":       `{"leaderID":"","leaderAddr":"","lastUpdated":"2026-01-01T00:00:00Z"}`,
		"not a lock":     `stop`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				mayReturn := make(chan struct{})
				s := start(t, store, "one", func(ctx context.Context) error {
					<-ctx.Done()
					await(t, mayReturn)
					return ctx.Err()
				})
				pass(interval + time.Second)
				overwrite(t, store, force)
				pass(interval - time.Second)
				expectTerms(t, s, 1, false)
				if cause := context.Cause(s.term); !errors.Is(cause, leader.ErrNotLeading) {
					t.Errorf("the term was canceled because of %v", cause)
				}
				calls, _ := s.link.count()
				pass(time.Hour)
				if now, _ := s.link.count(); now != calls {
					t.Errorf("the storage was called %d times while the term was stopping", now-calls)
				}
				close(mayReturn)
				pass(2 * timeout)
				// A lock with its own id belongs to another process, which may
				// lead.
				expectTerms(t, s, 2, true)
			})
		})
	}
}

// TestErrorAfterALostTerm checks that the error of a lost term is not returned
// as the server's.
func TestErrorAfterALostTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, openStorage(t), "one", func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("could not finish")
		})
		pass(time.Second)
		s.link.set(down)
		pass(lease)
		expectTerms(t, s, 1, false)
		s.link.set(working)
		pass(interval)
		expectTerms(t, s, 2, true)
	})
}

// TestErrorOfTheExpiredLease checks that a failure that the expired lease
// causes before the term's context is done does not stop the server.
func TestErrorOfTheExpiredLease(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			var elector *leader.Elector
			known := make(chan struct{})
			s := start(t, openStorage(t), "one", func(ctx context.Context) error {
				<-known
				call, cancel := elector.Context(ctx)
				defer cancel()
				<-call.Done()
				return errors.New("no answer")
			})
			elector = s.Elector
			s.link.set(down)
			close(known)
			pass(lease)
			s.link.set(working)
			pass(interval)
			expectTerms(t, s, 2, true)
		})
	}
}
