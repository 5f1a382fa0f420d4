// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/testing/tier"
)

// model contains the expected instances by id.
type model map[string]instance.Instance

// existing returns the ids of the instances that are not deleted, in order.
func (m model) existing() []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(m)) {
		if m[id].DeletedAt.IsZero() {
			ids = append(ids, id)
		}
	}
	return ids
}

// change changes an instance.
func (m model) change(id string, edit func(*instance.Instance)) {
	i := m[id]
	edit(&i)
	m[id] = i
}

// loseCache removes the state that only the cache has: decisions and deleted instances.
func (m model) loseCache() {
	for id, i := range m {
		if !i.DeletedAt.IsZero() {
			delete(m, id)
			continue
		}
		m[id] = undecided(i)
	}
}

// undecided returns the instance without the decisions that only the cache has.
func undecided(i instance.Instance) instance.Instance {
	i.Drain, i.DeleteReason = nil, ""
	if !i.DeletionRequestedAt.IsZero() {
		setDeleteReason(&i, instance.ReasonRequested)
	}
	return i
}

// setDeleteReason sets the reason unless there is one.
func setDeleteReason(i *instance.Instance, reason string) {
	if i.DeleteReason == "" {
		i.DeleteReason = reason
	}
}

// TestRandomWalk takes random steps through the lifecycles of instances. The
// cache is deleted during use and between servers, and servers are restarted
// and replaced. The cloud lists all instances, so that their states do not
// change.
func TestRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(8, 40)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			walk(t, rand.New(rand.NewPCG(seed, 0)), 400)
		})
	}
}

func walk(t *testing.T, random *rand.Rand, steps int) {
	s := newShard(t, t.TempDir())
	ctx := t.Context()
	want := model{}
	// lost is true while decisions are written to a deleted file.
	lost := false
	for step := range steps {
		s.clock.SetTime(s.clock.Now().Add(time.Second))
		now := s.clock.Now()
		existing := want.existing()
		id := ""
		if len(existing) > 0 {
			id = existing[random.IntN(len(existing))]
		}
		did := ""
		switch n := random.IntN(100); {
		case n < 25 || id == "":
			did = "add"
			record := newRecord(t)
			record.CreatedAt = now
			record.Group = fmt.Sprintf("group-%d", random.IntN(3))
			if random.IntN(3) == 0 {
				onDemand(record.ID + "-request")(&record)
			}
			require.NoError(s.t, s.Add(ctx, record))
			s.cloud.show(t, vmOf(record, instance.Running))
			want[record.ID] = instance.Instance{Record: record, State: instance.Running, Known: true, Found: true}
		case n < 45:
			did = "provider id"
			require.NoError(s.t, s.SetProviderID(ctx, id, "cloud:///"+id))
			want.change(id, func(i *instance.Instance) { i.ProviderID = "cloud:///" + id })
		case n < 55:
			did = "drain"
			drain := instance.Drain{Reason: instance.ReasonExpired, StartedAt: now, DeleteAt: now.Add(time.Minute)}
			require.NoError(s.t, s.StartDrain(ctx, id, drain))
			want.change(id, func(i *instance.Instance) {
				if i.Drain == nil {
					i.Drain = &drain
				}
			})
		case n < 60:
			did = "acknowledge"
			require.NoError(s.t, s.Acknowledge(ctx, id))
			want.change(id, func(i *instance.Instance) {
				drain := instance.Drain{Reason: instance.ReasonUnhealthy, StartedAt: now, DeleteAt: now}
				if i.Drain != nil {
					drain = *i.Drain
				}
				drain.Acknowledged = true
				i.Drain = &drain
			})
		case n < 68:
			did = "deleting"
			require.NoError(s.t, s.SetDeleting(ctx, id, instance.ReasonExpired))
			want.change(id, func(i *instance.Instance) { setDeleteReason(i, instance.ReasonExpired) })
		case n < 71:
			did = "request to delete"
			require.NoError(s.t, s.RequestDeletion(ctx, id))
			want.change(id, func(i *instance.Instance) {
				setDeleteReason(i, instance.ReasonRequested)
				if i.DeletionRequestedAt.IsZero() {
					i.DeletionRequestedAt = now
				}
			})
		case n < 78:
			did = "remove"
			s.cloud.remove(t, id)
			require.NoError(s.t, s.Remove(ctx, id))
			want.change(id, func(i *instance.Instance) {
				i.State, i.Known, i.Found, i.DeletedAt = instance.Missing, false, false, now
			})
		case n < 82:
			did = "purge"
			before := now.Add(-10 * time.Second)
			s.Purge(ctx, before)
			maps.DeleteFunc(want, func(_ string, i instance.Instance) bool {
				return !i.DeletedAt.IsZero() && i.DeletedAt.Before(before)
			})
		case n < 88:
			did = "lose the cache"
			if !lost {
				s.loseCache()
			}
			lost = true
		case n < 92:
			did = "restart after another server"
			s.close()
			s.open(instancestore.Options{Stale: true})
			for id, i := range want {
				switch {
				case i.DeletedAt.IsZero():
					want[id] = undecided(i)
				case lost:
					delete(want, id)
				}
			}
			lost = false
		default:
			did = "restart"
			s.restart()
			if lost {
				want.loseCache()
			}
			lost = false
		}
		compare(t, s, want, fmt.Sprintf("step %d, %s %s", step, did, id))
	}
	// The last start is without a cache.
	s.close()
	require.NoError(s.t, os.RemoveAll(s.cachePath()))
	s.open(instancestore.Options{})
	want.loseCache()
	compare(t, s, want, "at the end")
}

// compare fails the test if the store differs from want.
func compare(t *testing.T, s *shard, want model, when string) {
	t.Helper()
	got := model{}
	for id := range want {
		if i, found := s.Get(id); found {
			got[id] = i
		}
		if key := want[id].IdempotencyKey; key != "" {
			if i, _ := s.ByIdempotencyKey(group.Tenant, key); i.ID != id {
				t.Fatalf("%s: the idempotency key %s returns %q", when, key, i.ID)
			}
		}
	}
	require.Empty(t, cmp.Diff(want, got), "%s (-want +found)", when)
	var listed []string
	for _, key := range s.Keys() {
		list := s.List(key)
		if !slices.IsSortedFunc(list, func(a, b instance.Instance) int { return a.CreatedAt.Compare(b.CreatedAt) }) {
			t.Fatalf("%s: group %s is not in order", when, key)
		}
		listed = append(listed, ids(list)...)
	}
	slices.Sort(listed)
	require.Empty(t, cmp.Diff(want.existing(), listed), "%s (-want +listed)", when)
}
