// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// writeInterval is how often leaders write.
	writeInterval = 300 * time.Millisecond
	// checkInterval is how often the walk checks the leaders, in addition to
	// the beginnings of terms.
	checkInterval = time.Second
)

// TestAtMostOneLeader lets five servers pause, lose the storage or its answers, crash, stop
// and restart, and continuously checks which server leads and which writes through its fence.
// After all faults are cleared, one server leads and keeps leading.
func TestAtMostOneLeader(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(4, 20)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				w := &walk{
					store:  openStorage(t),
					random: random,
					election: config.Election{
						Enabled:  true,
						Interval: time.Second + time.Duration(random.Int64N(int64(4*time.Second))),
						Timeout:  timeout,
					},
					began: make(chan struct{}, 1),
				}
				for i := range 5 {
					w.servers = append(w.servers, w.start(t, fmt.Sprintf("s%d", i)))
				}
				for range 150 {
					w.disturb(t)
					w.pass(t, time.Duration(random.Int64N(int64(timeout))))
				}
				w.calm(t)
				writes, _ := w.journal.count()
				t.Logf("leaders changed %d times and wrote %d times", w.changes, writes)
				if w.changes < 10 || writes < 1000 {
					t.Error("nothing was tested")
				}
			})
		})
	}
}

// walk is a set of servers that are disturbed at random.
type walk struct {
	store    storage.Store
	random   *rand.Rand
	election config.Election
	servers  []*walker
	journal  journal
	// began receives a value after a term has begun.
	began chan struct{}

	// leader is the id of the last leader, and changes counts them.
	leader  string
	changes int
}

// walker is one run of a server that writes to the journal while it leads.
type walker struct {
	*server
	id string
	// writes is its connection to the journal.
	writes *link
	dead   bool
}

// journal is a storage that counts writes, and writes of servers that do not
// lead at that moment. Like every storage it checks the deadline last.
type journal struct {
	storage.Store
	mu                sync.Mutex
	writes, forbidden int
}

type journalOf struct {
	*journal
	writer *walker
}

func (j journalOf) Create(ctx context.Context, _ string, _ []byte) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := deadline.Check(ctx); err != nil {
		return "", err
	}
	j.writes++
	if !j.writer.Leading() {
		j.forbidden++
	}
	return "", nil
}

func (j *journal) count() (writes, forbidden int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.writes, j.forbidden
}

func (w *walk) start(t *testing.T, id string) *walker {
	s := &walker{id: id}
	s.writes = newLink(journalOf{&w.journal, s})
	known := make(chan struct{})
	s.server = startWith(t, w.store, id, w.election, func(ctx context.Context) error {
		<-known
		select {
		case w.began <- struct{}{}:
		default:
		}
		fenced := s.Fence(s.writes)
		for ctx.Err() == nil {
			_, _ = fenced.Create(ctx, "any", nil)
			select {
			case <-ctx.Done():
			case <-time.After(writeInterval):
			}
		}
		return ctx.Err()
	})
	close(known)
	t.Cleanup(func() { s.writes.set(working) })
	return s
}

// disturb disturbs one server, or the lock.
func (w *walk) disturb(t *testing.T) {
	i := w.random.IntN(len(w.servers))
	s := w.servers[i]
	if s.dead {
		w.servers[i] = w.start(t, s.id)
		return
	}
	switch n := w.random.IntN(20); {
	case n < 2:
		s.dead = true
		s.writes.set(cut)
		s.kill()
	case n < 4:
		s.dead = true
		s.set(working)
		s.stop()
		<-s.done
	case n < 5:
		overwrite(t, w.store, "edited by hand at "+time.Now().String())
	default:
		// Most faults affect the leader.
		for _, other := range w.servers {
			if !other.dead && other.Leading() && w.random.IntN(2) == 0 {
				s = other
			}
		}
		s.set([]fault{working, down, hanging, paused, mute, late}[w.random.IntN(6)])
	}
}

// set sets the fault of all calls of the server.
func (s *walker) set(f fault) {
	s.link.set(f)
	if f == late {
		// No fence stops a write that the storage has begun to carry out.
		f = hanging
	}
	s.writes.set(f)
}

// pass lets time pass and checks the leaders, also whenever a term begins.
func (w *walk) pass(t *testing.T, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		select {
		case <-w.began:
		case <-time.After(checkInterval):
		}
		synctest.Wait()
		w.check(t)
	}
}

func (w *walk) check(t *testing.T) {
	t.Helper()
	var leader *walker
	for _, s := range w.servers {
		switch {
		case s.dead || !s.Leading():
		case leader != nil:
			t.Fatalf("%s and %s lead", leader.id, s.id)
		default:
			leader = s
		}
	}
	if leader != nil && leader.id != w.leader {
		w.leader = leader.id
		w.changes++
	}
	if _, forbidden := w.journal.count(); forbidden > 0 {
		t.Fatal("a server wrote that did not lead")
	}
}

// calm clears all faults and checks that one server leads soon, and that no
// other follows.
func (w *walk) calm(t *testing.T) {
	for i, s := range w.servers {
		if s.dead {
			w.servers[i] = w.start(t, s.id)
		} else {
			s.set(working)
		}
	}
	w.pass(t, 2*timeout)
	changes := w.changes
	for range 10 {
		w.pass(t, timeout)
		leads := 0
		for _, s := range w.servers {
			if s.Leading() {
				leads++
			}
		}
		if leads != 1 || w.changes != changes {
			t.Fatalf("in quiet times %d servers lead, and leaders changed %d times", leads, w.changes-changes)
		}
	}
}
