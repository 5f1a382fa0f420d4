// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/leader"
)

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

// expectReign expects a server to lead and returns its reign, which must be the
// one before, or another.
func expectReign(t *testing.T, s *server, terms int, before string, same bool) string {
	t.Helper()
	expectTerms(t, s, terms, true)
	reign := s.Reign()
	if reign == "" || (reign == before) != same {
		t.Errorf("the reign is %q, was %q, want the same: %t", reign, before, same)
	}
	return reign
}

// TestReign: a server that is followed by itself may go by what it knew.
func TestReign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(time.Second)
		reign := expectReign(t, first, 1, "", false)
		first.stop()
		<-first.done
		first = start(t, store, "one", nil)
		pass(time.Second)
		expectReign(t, first, 1, reign, true)

		// Others that only look on, and faults that they do not make use of, are
		// nobody's terms.
		pass(interval + time.Second)
		second := start(t, store, "two", nil)
		first.link.set(down)
		pass(lease)
		expectTerms(t, first, 1, false)
		first.link.set(working)
		pass(interval)
		expectReign(t, first, 2, reign, true)

		first.kill()
		pass(2 * timeout)
		reign = expectReign(t, second, 1, reign, false)
		second.stop()
		<-second.done
		// It is killed before it could use what it got, and starts again: it has
		// not led since the other one.
		first = start(t, store, "one", nil)
		pass(time.Second)
		taken := expectReign(t, first, 1, reign, false)
		first.kill()
		first = start(t, store, "one", nil)
		pass(time.Second)
		expectReign(t, first, 1, taken, true)

		// Without a lock nobody knows, nor when another make of server released it.
		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		pass(interval)
		reign = expectReign(t, first, 2, taken, false)
		overwrite(t, store, `{"leaderID":"","leaderAddr":"","lastUpdated":"2026-01-01T00:00:00Z"}`)
		pass(interval)
		expectReign(t, first, 3, reign, false)
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
		// The second looks before the first renews.
		pass(4*interval - time.Second/2)
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

// TestTwoServersWithOneID: the second takes the first one's lock for one of a
// former life of its own. It cannot know better, but the first can.
func TestTwoServersWithOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(interval)
		second := start(t, store, "one", nil)
		pass(10 * timeout)
		expectTerms(t, first, 1, false)
		expectTerms(t, second, 1, true)
	})
}
