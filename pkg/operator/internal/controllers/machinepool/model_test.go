// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/tier"
)

type modelMachine struct {
	shard                string
	annotated            string
	deleting, terminated bool
}

type modelServer struct {
	size      int32
	first     []string
	instances []string // oldest first
	reachable bool
	synced    bool
	reported  *shard.Group
}

// model is a pool of three shards with its servers and Cluster API.
type model struct {
	t        *testing.T
	r        *rand.Rand
	pool     *v1beta1.NstanceMachinePool
	replicas int32
	groups   map[string]*v1beta1.NstanceShardGroup
	servers  map[string]*modelServer
	machines map[string]*modelMachine
	clock    int
	log      []string
	next     int
}

func (s *model) logf(f string, a ...any) { s.log = append(s.log, fmt.Sprintf(f, a...)) }

func (s *model) ids() []string { return []string{"a", "b", "c"} }

// reconcile is the server.
func (s *model) reconcile(id string) {
	v := s.servers[id]
	for len(v.instances) > int(v.size) {
		at := slices.IndexFunc(v.instances, func(i string) bool { return slices.Contains(v.first, i) })
		if at < 0 {
			at = 0
			m := s.machines[v.instances[0]]
			if m == nil || m.annotated == "" && !m.deleting {
				s.t.Fatalf("the server terminates %s of shard %s, which is no candidate (size %d first %v)\n%s", v.instances[0], id, v.size, v.first, strings.Join(s.log, "\n"))
			}
		}
		s.logf("server %s terminates %s", id, v.instances[at])
		v.instances = slices.Delete(v.instances, at, at+1)
	}
	for len(v.instances) < int(v.size) {
		s.next++
		v.instances = append(v.instances, fmt.Sprintf("%s%d", id, s.next))
		s.logf("server %s creates %s%d", id, id, s.next)
	}
	s.report(id)
}

func (s *model) report(id string) {
	v := s.servers[id]
	if !v.reachable {
		return
	}
	v.synced = true
	v.reported = &shard.Group{ListsInstances: true, Size: v.size, RemoveFirst: v.first}
	for _, i := range v.instances {
		v.reported.Instances = append(v.reported.Instances, shard.Instance{ID: i, State: shard.InstanceRunning})
		if s.machines[i] == nil {
			s.machines[i] = &modelMachine{shard: id}
		}
	}
	for i, m := range s.machines {
		if m.shard == id && !slices.Contains(v.instances, i) {
			m.terminated, m.deleting = true, true
		}
	}
}

func (s *model) seen() observation {
	groups := []*v1beta1.NstanceShardGroup{}
	for _, id := range s.ids() {
		groups = append(groups, s.groups[id])
	}
	seen := observed(s.pool, s.replicas, groups...)
	seen.pool.Status.InfrastructureMachineKind = v1beta1.MachineKind
	for i := range seen.shards {
		v := s.servers[seen.shards[i].id]
		seen.shards[i].synced, seen.shards[i].reported = v.synced, nil
		if v.synced {
			seen.shards[i].reported = v.reported
			seen.shards[i].size = v.reported.Size
		}
	}
	// Nothing but candidates and missing instances passes these guards.
	seen.guarded = &guarded{now: noon, stable: math.MaxInt32}
	seen.distributable = distributable(seen.pool, seen.shards)
	return seen
}

func (s *model) sync() {
	seen := s.seen()
	if needsCandidates(seen) {
		for _, id := range slices.Sorted(maps.Keys(s.machines)) {
			m := s.machines[id]
			if (m.annotated != "" || m.deleting) && !m.terminated {
				seen.candidates = append(seen.candidates, distribute.Candidate{ID: id, Shard: m.shard, Annotated: m.annotated != "", Annotation: m.annotated})
			}
		}
	}
	d := planOf(seen)
	s.r.Shuffle(len(d.apply), func(i, j int) { d.apply[i], d.apply[j] = d.apply[j], d.apply[i] })
	for _, want := range d.apply {
		if s.r.IntN(4) == 0 {
			s.logf("crash")
			return
		}
		s.logf("apply %s: %d %v", want.spec.Shard, want.spec.Size, want.spec.RemoveFirst)
		group := newShardGroup(s.pool, string(want.spec.Shard), want.spec.Size)
		group.Spec = want.spec
		s.groups[string(want.spec.Shard)] = group
	}
}

func (s *model) send(id string) {
	v, g := s.servers[id], s.groups[id]
	if !v.reachable || v.size == g.Spec.Size && slices.Equal(v.first, g.Spec.RemoveFirst) {
		return
	}
	v.size, v.first = g.Spec.Size, slices.Clone(g.Spec.RemoveFirst)
	s.logf("sent %s: %d %v", id, v.size, v.first)
	s.reconcile(id)
}

func (s *model) deleteSelectedMachines() {
	for _, g := range s.groups {
		for _, id := range g.Spec.RemoveFirst {
			if m := s.machines[id]; m != nil {
				m.deleting = true
			}
		}
	}
}

// finish continues the deletion of a Machine.
func (s *model) finish(id string) {
	m := s.machines[id]
	if m == nil || !m.deleting {
		return
	}
	v := s.servers[m.shard]
	if m.terminated {
		delete(s.machines, id)
		return
	}
	if !v.reachable {
		return
	}
	var total int32
	for _, g := range s.groups {
		total += g.Spec.Size
	}
	selected := slices.Contains(s.groups[m.shard].Spec.RemoveFirst, id)
	if s.replicas < total && (s.pool.Spec.ScaleDown == nil || !selected) || selected && !slices.Contains(v.first, id) {
		return
	}
	s.logf("DeleteInstance %s", id)
	v.instances = slices.DeleteFunc(v.instances, func(i string) bool { return i == id })
	delete(s.machines, id)
	s.reconcile(m.shard)
}

func (s *model) live() []string {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(s.machines)) {
		if m := s.machines[id]; !m.deleting && m.annotated == "" && !m.terminated && slices.Contains(s.servers[m.shard].instances, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// In spite of deletions, losses, unreachable shards and crashes between two writes: only
// instances are terminated that were annotated, deleted or lost, all annotated instances are
// terminated, and finally the pool has as many instances as replicas. Guards change nothing
// about that, whatever they block.
func TestOnlyCandidatesAreTerminated(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 4)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testOnlyCandidatesAreTerminated(t, seed) })
	}
}

func testOnlyCandidatesAreTerminated(t *testing.T, seed uint64) {
	for run := range 2000 {
		s := &model{t: t, r: rand.New(rand.NewPCG(seed, uint64(run))), pool: newPool("a", "b", "c"),
			groups: map[string]*v1beta1.NstanceShardGroup{}, servers: map[string]*modelServer{}, machines: map[string]*modelMachine{}}
		s.pool.Spec.MachineMode = v1beta1.MachineModeAlways
		if run%4 > 1 {
			s.pool.Spec.ScaleDown = upTo("1")
			s.pool.Spec.ScaleDown.MinReadySeconds, s.pool.Spec.ScaleDown.StabilizationSeconds = ptr.To[int32](3600), ptr.To[int32](3600)
		}
		for _, id := range s.ids() {
			n := s.r.Int32N(4)
			s.replicas += n
			s.groups[id] = newShardGroup(s.pool, id, n)
			s.servers[id] = &modelServer{size: n, reachable: true}
			s.reconcile(id)
		}
		// A scale-up before a scale-down was seen may keep an annotated instance.
		grows := run%2 == 0
		s.logf("run %d replicas %d", run, s.replicas)
		for range 60 {
			shardID := s.ids()[s.r.IntN(3)]
			switch k := s.r.IntN(14); k {
			case 0, 1:
				if live := s.live(); len(live) > 0 && s.replicas > 0 {
					id := live[s.r.IntN(len(live))]
					s.clock++
					s.machines[id].annotated = fmt.Sprintf("%06d", s.clock)
					s.replicas--
					s.logf("autoscaler: %s, replicas %d", id, s.replicas)
				}
			case 2:
				if live := s.live(); len(live) > 0 && s.r.IntN(2) == 0 {
					id := live[s.r.IntN(len(live))]
					s.machines[id].deleting = true
					s.logf("kubectl delete machine %s", id)
				}
			case 3:
				if grows && s.r.IntN(3) == 0 {
					s.replicas += 1 + s.r.Int32N(3)
					s.logf("replicas %d", s.replicas)
				}
			case 4:
				v := s.servers[shardID]
				if v.reachable = !v.reachable; v.reachable {
					s.reconcile(shardID)
				} else if s.r.IntN(2) == 0 {
					v.synced = false
				}
				s.logf("shard %s reachable %t synced %t", shardID, v.reachable, v.synced)
			case 5:
				if live := s.live(); len(live) > 0 {
					id := live[s.r.IntN(len(live))]
					v := s.servers[s.machines[id].shard]
					s.logf("lost %s", id)
					v.instances = slices.DeleteFunc(v.instances, func(i string) bool { return i == id })
					s.reconcile(s.machines[id].shard)
				}
			case 6, 7, 8:
				s.sync()
			case 9, 10:
				s.send(shardID)
			case 11:
				s.deleteSelectedMachines()
			default:
				if ids := slices.Sorted(maps.Keys(s.machines)); len(ids) > 0 {
					s.finish(ids[s.r.IntN(len(ids))])
				}
			}
		}
		// No more changes.
		for _, id := range s.ids() {
			s.servers[id].reachable = true
			s.reconcile(id)
		}
		for range 30 {
			s.sync()
			s.deleteSelectedMachines()
			for _, id := range s.ids() {
				s.send(id)
			}
			for _, id := range slices.Sorted(maps.Keys(s.machines)) {
				s.finish(id)
			}
		}
		var total int32
		for _, v := range s.servers {
			total += int32(len(v.instances))
		}
		for id, m := range s.machines {
			if !grows && m.annotated != "" {
				t.Fatalf("%s was annotated and stays\n%s", id, strings.Join(s.log, "\n"))
			}
		}
		if total != s.replicas {
			t.Fatalf("%d instances of %d\n%s", total, s.replicas, strings.Join(s.log, "\n"))
		}
	}
}
