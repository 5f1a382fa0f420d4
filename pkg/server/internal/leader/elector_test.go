// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

func TestFirstServerLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		began := time.Now().UTC()
		s := start(t, store, "one", nil)
		expectTerms(t, s, 1, true)
		_, object := readLock(t, store)
		want := `,"leaderAddr":"one:8991","lastUpdated":"` + began.Format(time.RFC3339Nano) + `"}`
		if text := string(object.Data); !strings.HasPrefix(text, `{"leaderID":"one",`) || !strings.HasSuffix(text, want) || !strings.HasSuffix(want, `Z"}`) {
			t.Errorf("the lock is %s, want %s", object.Data, want)
		}

		// The lock is renewed once per interval, and there are no other calls.
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

func TestOneOfManyServersLeads(t *testing.T) {
	for name, lock := range map[string]string{"no lock": "", "released": `{"leaderID":""}`} {
		t.Run(name, func(t *testing.T) { testOneOfManyServersLeads(t, lock) })
	}
}

func testOneOfManyServersLeads(t *testing.T, lock string) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		if lock != "" {
			overwrite(t, store, lock)
		}
		var servers []*server
		began := make(chan struct{})
		for i := range 5 {
			// All servers read the lock before the first one can acquire it.
			waiting := storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
				err := do(ctx)
				if call.Operation == "Get" {
					select {
					case <-began:
					case <-ctx.Done():
					}
				}
				return err
			}}
			s := start(t, waiting, fmt.Sprintf("s%d", i), nil)
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
		assert.Equal(t, 1, leads, "servers that lead")
		pass(100 * interval)
		for _, s := range servers {
			if s.terms > 1 || s.Leading() != (s.terms == 1) {
				t.Errorf("leads %v in its term %d", s.Leading(), s.terms)
			}
		}
	})
}

// TestConflictsAreRetriedSlowly uses a storage that reports a conflict for each
// write, and limits the number of calls.
func TestConflictsAreRetriedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conflicting := storagetest.Intercepted{Store: openStorage(t), Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
			if call.Operation == "Create" {
				return storage.ErrConflict
			}
			return do(ctx)
		}}
		s := start(t, conflicting, "one", nil)
		before, _ := s.link.count()
		pass(time.Second)
		if calls, _ := s.link.count(); calls-before > 20 {
			t.Errorf("the storage was called %d times in a second", calls-before)
		}
	})
}

func TestElectionsWithDifferentLocksAreIndependent(t *testing.T) {
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

// TestTakeover kills the leader at various moments. Another server may lead
// when the lock was not renewed for a timeout, and does so within two.
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

func TestReleasedLockIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		mayReturn := make(chan struct{})
		first := start(t, store, "one", func(ctx context.Context) error {
			<-ctx.Done()
			await(t, mayReturn)
			return ctx.Err()
		})
		second := start(t, store, "two", nil)
		pass(interval + time.Second)
		before, _ := readLock(t, store)

		// The server waits for its own work, which may use the rest of the lease.
		first.stop()
		synctest.Wait()
		if lock, _ := readLock(t, store); lock != before {
			t.Errorf("the lock is %v while the term is stopping, want %v", lock, before)
		}
		expectTerms(t, first, 1, true)

		close(mayReturn)
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

// TestBlockedTermIsReplaced stops a leader whose work never returns: other
// servers do not wait for it.
func TestBlockedTermIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		mayReturn := make(chan struct{})
		first := start(t, store, "one", func(context.Context) error { await(t, mayReturn); return nil })
		second := start(t, store, "two", nil)
		pass(interval)
		first.stop()
		pass(lease)
		expectTerms(t, first, 1, false)
		pass(2 * timeout)
		expectTerms(t, second, 1, true)
		_, lock := readLock(t, store)
		close(mayReturn)
		<-first.done
		if _, now := readLock(t, store); now.ETag != lock.ETag {
			t.Errorf("the old leader changed the lock of the new one: %s", now.Data)
		}
	})
}

func TestFailedTerm(t *testing.T) {
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

func TestWithoutElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		s := startWith(t, store, "one", config.Election{}, nil)
		pass(time.Hour)
		expectTerms(t, s, 1, true)
		if leadershipID := s.LeadershipID(); leadershipID != "" {
			t.Errorf("the leadership id is %q", leadershipID)
		}
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

func TestServerNeedsAnID(t *testing.T) {
	elector := leader.New(leader.Options{Store: openStorage(t), Key: key, Election: election})
	if err := elector.Run(t.Context(), nil); err == nil {
		t.Error("a server without an id stands for election")
	}
}

// expectResponse queries s at both paths.
func expectResponse(t *testing.T, s *server, status int, want leader.Lock) {
	t.Helper()
	for _, path := range []string{"/leader/health", "/health/leadership"} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var lock leader.Lock
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &lock), "%s answers %q", path, w.Body)
		if w.Code != status || lock != want || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s answers %d, %v %v, want %d, %v", path, w.Code, w.Header(), lock, status, want)
		}
	}
}

func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(time.Second)
		second := start(t, store, "two", nil)
		lock, _ := readLock(t, store)
		expectResponse(t, first, http.StatusOK, lock)
		expectResponse(t, second, http.StatusServiceUnavailable, lock)

		// A leader that lost the storage still returns the last leader, and reports that it
		// does not lead any more.
		first.link.set(down)
		second.link.set(down)
		pass(lease)
		expectResponse(t, first, http.StatusServiceUnavailable, lock)
		expectResponse(t, second, http.StatusServiceUnavailable, lock)

		second.link.set(working)
		overwrite(t, store, "nobody")
		pass(interval)
		expectResponse(t, second, http.StatusServiceUnavailable, leader.Lock{})
		w := httptest.NewRecorder()
		second.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/leader/health", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("a POST is answered %d", w.Code)
		}
	})
}
