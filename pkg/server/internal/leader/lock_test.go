// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/internal/leader"
)

// TestClocksOfOtherServers uses a lock whose leader has a wrong wall clock: the lock is valid
// for a timeout since it was first seen. The time in it does not count.
func TestClocksOfOtherServers(t *testing.T) {
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

// TestPreviousRun restarts a server that was killed while it led.
func TestPreviousRun(t *testing.T) {
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

// expectLeadershipID expects a server to lead and returns its leadership id,
// which must equal the previous one, or differ from it.
func expectLeadershipID(t *testing.T, s *server, terms int, before string, same bool) string {
	t.Helper()
	expectTerms(t, s, terms, true)
	leadershipID := s.LeadershipID()
	if leadershipID == "" || (leadershipID == before) != same {
		t.Errorf("the leadership id is %q, was %q, want the same: %t", leadershipID, before, same)
	}
	return leadershipID
}

// TestLeadershipID checks that a server keeps its leadership id across
// restarts, and gets another one when another server has led.
func TestLeadershipID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(time.Second)
		leadershipID := expectLeadershipID(t, first, 1, "", false)
		first.stop()
		<-first.done
		first = start(t, store, "one", nil)
		pass(time.Second)
		expectLeadershipID(t, first, 1, leadershipID, true)

		// Servers that only observe, and faults without consequences, begin no
		// term.
		pass(interval + time.Second)
		second := start(t, store, "two", nil)
		first.link.set(down)
		pass(lease)
		expectTerms(t, first, 1, false)
		first.link.set(working)
		pass(interval)
		expectLeadershipID(t, first, 2, leadershipID, true)

		first.kill()
		pass(2 * timeout)
		leadershipID = expectLeadershipID(t, second, 1, leadershipID, false)
		second.stop()
		<-second.done
		// The server is killed before it could use the lock, and restarts: it has not led
		// since the other server.
		first = start(t, store, "one", nil)
		pass(time.Second)
		taken := expectLeadershipID(t, first, 1, leadershipID, false)
		first.kill()
		first = start(t, store, "one", nil)
		pass(time.Second)
		expectLeadershipID(t, first, 1, taken, true)

		// Without a lock the last leader is unknown, as it is when another
		// implementation released the lock.
		require.NoError(t, store.Delete(t.Context(), key))
		pass(interval)
		leadershipID = expectLeadershipID(t, first, 2, taken, false)
		overwrite(t, store, `{"leaderID":"","leaderAddr":"","lastUpdated":"2026-01-01T00:00:00Z"}`)
		pass(interval)
		expectLeadershipID(t, first, 3, leadershipID, false)
	})
}

// TestUnreadableLock checks that other servers wait: the leader may be alive,
// and only it can repair the lock.
func TestUnreadableLock(t *testing.T) {
	for _, data := range []string{"", " ", "null", "{}", "[]", "{", `"one"`, "\x00\xff", `{"leaderID":null}`, `{"leaderID":7}`,
		`{"leaderID":""}}`, `{"leaderID":"","lastUpdated":"yesterday"}`, `{"leaderAddr":"x:1","lastUpdated":"2026-01-01T00:00:00Z"}`} {
		t.Run(data, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				overwrite(t, store, data)
				logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
				elector := leader.New(leader.Options{Store: store, Key: key, ID: "one", Boot: "boot", Election: election})
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
				if strings.Count(log, "\n") != 1 || !strings.Contains(log, "Failed to decode the lock") {
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

// TestDeletedLock checks that the leader leads until it notices, so the others
// wait as if the lock existed.
func TestDeletedLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(time.Second)
		second := start(t, store, "two", nil)
		// The second server reads before the first server renews.
		pass(4*interval - time.Second/2)
		require.NoError(t, store.Delete(t.Context(), key))
		pass(interval)
		expectTerms(t, second, 0, false)
		expectTerms(t, first, 2, true)

		require.NoError(t, store.Delete(t.Context(), key))
		first.kill()
		pass(2 * timeout)
		expectTerms(t, second, 1, true)
	})
}

// TestDeletedLockAtTheStart deletes the lock of a leader, and then starts another server. It
// waits as if the lock existed, if the storage shows that a server has led.
func TestDeletedLockAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(interval + time.Second)
		require.NoError(t, store.Delete(t.Context(), key))
		second := startUsed(t, store, "two")
		pass(time.Second)
		expectTerms(t, second, 0, false)
		pass(interval)
		expectTerms(t, second, 0, false)
		expectTerms(t, first, 2, true)

		require.NoError(t, store.Delete(t.Context(), key))
		first.kill()
		second.kill()
		third := startUsed(t, store, "three")
		pass(timeout - 1)
		expectTerms(t, third, 0, false)
		pass(1)
		expectTerms(t, third, 1, true)
	})
}

// TestNoLockAndAnUnknownPast starts a server that cannot read whether a server has led. It
// waits as if a server still leads.
func TestNoLockAndAnUnknownPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{link: newLink(openStorage(t)), done: make(chan struct{})}
		used := func(context.Context) (bool, error) { return false, errors.New("the list failed") }
		s.start(t, leader.Options{Store: s.link, Key: key, ID: "one", Boot: "boot", Address: "one:8991", Election: election, Used: used})
		pass(timeout - 1)
		expectTerms(t, s, 0, false)
		pass(1)
		expectTerms(t, s, 1, true)
	})
}

// TestIDThatWasCopied starts servers whose id was copied with the image of a machine, a server
// whose machine was restarted, and a server that does not know its boot id: each waits for the end
// of the lease, and none goes on with the leadership of another.
func TestIDThatWasCopied(t *testing.T) {
	for _, boot := range []string{"another", ""} {
		t.Run(boot, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				first := start(t, store, "one", nil)
				pass(interval)
				copied := startElsewhere(t, store, "one", boot)
				pass(10 * timeout)
				leadershipID := expectLeadershipID(t, first, 1, "", false)
				expectTerms(t, copied, 0, false)
				if lock, _ := copied.Leader(); copied.Own(lock) || !first.Own(lock) {
					t.Errorf("the copy takes the lock %+v for its own", lock)
				}
				first.kill()
				pass(timeout - interval)
				expectTerms(t, copied, 0, false)
				pass(timeout)
				leadershipID = expectLeadershipID(t, copied, 1, leadershipID, false)
				if boot == "" {
					return
				}
				copied.stop()
				<-copied.done
				first = start(t, store, "one", nil)
				pass(time.Second)
				expectLeadershipID(t, first, 1, leadershipID, false)
			})
		})
	}
}

// TestLockOfAnEarlierVersion does not name the start of the machine. After an upgrade the server goes on
// with its leadership, and with what it remembers of it.
func TestLockOfAnEarlierVersion(t *testing.T) {
	for name, lock := range map[string]string{
		"killed":   `{"leaderID":"one","reign":"earlier","leaderAddr":"one:8991","lastUpdated":"2026-01-01T00:00:00Z"}`,
		"released": `{"leaderID":"","releasedBy":"one","reign":"earlier","leaderAddr":"","lastUpdated":"2026-01-01T00:00:00Z"}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openStorage(t)
				overwrite(t, store, lock)
				s := start(t, store, "one", nil)
				pass(time.Second)
				expectLeadershipID(t, s, 1, "earlier", true)
			})
		})
	}
}

// TestTwoServersWithOneID checks that the first server notices a second on the same machine. The
// second takes the lock for a lock of its own previous run.
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
