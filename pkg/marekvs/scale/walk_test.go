// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
	"nstance.dev/operator/pkg/marekvs/storetest"
	"nstance.dev/operator/pkg/testing/tier"
)

// walk is a run of the operator on a model.
type walk struct {
	*storetest.Model

	wanted                  scale.Wanted
	settle                  time.Duration
	memory                  *memory
	lastScaled, lastRemoved int
	// image is the template that the spec wants.
	image string
	// late is a decision that is written some seconds after it was taken.
	late   *taken
	lateIn int
	// last is the last decision.
	last *taken
	// requested has the claims whose replacement users have asked for, lostAt when a volume was lost, and
	// replacing is the claim that is being replaced.
	requested map[claim]bool
	lostAt    map[claim]int
	replacing claim

	removals, reclaimed, updates, lost, replaced int
}

// claim is a volume claim of a node: each that is created has another number.
type claim struct {
	ordinal int32
	number  int
}

// taken is a decision, with the generation, the image and the claims that it was taken for.
type taken struct {
	scale.Decision

	generation int
	image      string
	claims     map[int32]int
	replacing  claim
}

// nothing is no claim.
var nothing = claim{ordinal: -1}

func newWalk(seed uint64) *walk {
	random := rand.New(rand.NewPCG(seed, 5))
	factor := 1 + random.Int32N(3)
	w := &walk{Model: storetest.NewFactor(random, 4+random.Int32N(4), int(factor)), memory: newMemory(), image: "1",
		requested: map[claim]bool{}, lostAt: map[claim]int{}, replacing: nothing}
	w.Volumes.CopySteps = []int{1, 5, 15, 40}[random.IntN(4)]
	w.settle = []time.Duration{0, 30 * time.Second}[random.IntN(2)]
	w.wanted = scale.Wanted{Nodes: 3 + random.Int32N(5), ReplicationFactor: factor,
		Reclaim: random.IntN(2) == 0, ReclaimAfter: time.Minute, ReplaceAfter: time.Minute}
	if random.IntN(2) == 0 {
		w.wanted.Autoscaler = &scale.Autoscaler{
			MinNodes: 3, MaxNodes: 8, ReplicationFactor: factor, OpsPerNode: 5000,
			UpCooldown: 20 * time.Second, DownStabilization: time.Minute,
		}
	}
	return w
}

// disturb may change the load, the spec or the Pods, as may happen at any time.
func (w *walk) disturb() {
	switch w.IntN(400) {
	case 0, 1:
		w.Evict()
	case 2:
		w.Pods[w.IntN(len(w.Pods))].Silent = w.IntN(90)
	case 3:
		w.memory = newMemory()
	case 4, 5:
		w.Rate = float64(w.IntN(40_000))
	case 6, 7:
		w.wanted.Nodes = 3 + w.Int32N(5)
	case 8:
		w.image = strconv.Itoa(w.Second)
	case 9:
		w.Drain(60)
	case 10:
		w.lose(w.Int32N(w.Replicas))
	case 11: // on purpose, by mistake, or too early
		w.requested[w.claimOf(w.Int32N(w.Replicas))] = true
	case 12:
		clear(w.requested)
	}
}

// lose loses a volume unless others are lost that may have the other copies. No operator knows of a loss
// between its decision and its write, which may take the node with the other copy.
func (w *walk) lose(ordinal int32) {
	if w.late != nil {
		return
	}
	if w.VolumesLost() < int(w.wanted.ReplicationFactor)-1 && w.LoseVolume(ordinal) {
		w.lostAt[w.claimOf(ordinal)] = w.Second
		w.lost++
	}
}

func (w *walk) claimOf(ordinal int32) claim { return claim{ordinal, w.DeletedVolumes[ordinal]} }

// pass is one pass of the operator. Its decision is written at once, not at all, or late.
func (w *walk) pass(disturbed bool) {
	window := time.Minute
	sinceScale := time.Duration(w.Second-w.lastScaled) * time.Second
	o, load, volumes := w.observe(w.memory, window, sinceScale)
	next := &taken{scale.Decide(&w.wanted, o, load, volumes), w.Generation, w.image, maps.Clone(w.DeletedVolumes), w.replacing}
	w.last = next
	delay := 0
	if disturbed {
		delay = w.IntN(12)
	}
	switch {
	case delay == 11: // the write fails
	case delay > 5:
		w.late, w.lateIn = next, delay
	default:
		w.write(next)
	}
}

// write writes what was planned unless the StatefulSet has changed since it was taken.
func (w *walk) write(planned *taken) {
	if planned.generation != w.Generation || planned.replacing != w.replacing {
		return
	}
	w.replaceVolume(planned)
	for _, v := range planned.Reclaim {
		w.DeleteVolume(v.Ordinal)
		w.reclaimed++
	}
	if w.Update.Template != planned.image {
		w.updates++
	}
	w.Roll(planned.image, planned.Rollout.Partition, planned.Rollout.OnDelete)
	if planned.Step.Replicas == w.Replicas {
		return
	}
	if planned.Step.Replicas < w.Replicas {
		w.removals++
		w.lastRemoved = w.Second
	}
	w.Resize(planned.Step.Replicas)
	w.lastScaled = w.Second
}

// replaceVolume begins a replacement, or deletes the volume of one that has begun.
func (w *walk) replaceVolume(decision *taken) {
	node := decision.Replacement.Node
	if node == nil {
		w.replacing = nothing
		return
	}
	lost := claim{node.Ordinal, decision.claims[node.Ordinal]}
	w.replacing = lost
	if decision.Replacement.Waiting == nil && node.Begun && lost == w.claimOf(node.Ordinal) {
		w.ReplaceVolume(node.Ordinal)
		w.replaced++
	}
}

func (w *walk) run(seconds int, disturbed bool) {
	for range seconds {
		if w.Tick(); disturbed {
			w.disturb()
		}
		if w.late != nil {
			if w.lateIn--; w.lateIn <= 0 {
				w.write(w.late)
				w.late = nil
			}
		}
		if w.Second%5 == 0 {
			w.pass(disturbed)
		}
	}
}

// settled reports whether the cluster has its size and its template, and no lost volume.
func (w *walk) settled() bool {
	return w.Replicas == w.target() && !w.tooLarge() && len(w.Online()) == int(w.Replicas) && w.VolumesLost() == 0 &&
		!slices.ContainsFunc(w.Pods, func(n *storetest.Node) bool { return n.Revision != w.image })
}

// tooLarge reports whether the autoscaler must remove a node.
func (w *walk) tooLarge() bool {
	return w.wanted.Autoscaler != nil && w.wanted.ReplicationFactor > 1 && w.Replicas > w.wanted.Autoscaler.Clamp(0) &&
		w.Rate/float64(max(w.Replicas-1, 1)) < 0.6*5000
}

// target returns the expected size at the end.
func (w *walk) target() int32 {
	switch target := scale.FixedTarget(w.wanted.Nodes, w.wanted.ReplicationFactor); {
	case w.wanted.Autoscaler != nil:
	case w.wanted.ReplicationFactor == 1:
		return max(target, w.Replicas) // no node is ever removed
	default:
		return target
	}
	// The lowest size that removals may reach at constant load.
	size := w.wanted.Autoscaler.Clamp(int32((w.Rate + 4999) / 5000))
	return max(size, w.Replicas)
}

// The nodes change at random: load, lost metrics, evictions, drains, restarts of the operator, writes
// that fail or are late, changes of the spec, which also update the Pods, lost volumes, and requests to
// replaceVolume nodes, which may work. Partitions take up to 40 seconds to copy, with 1 to 3 copies of each. No
// partition ever loses its last copy, no volume of a node is deleted but to replace it, and in the end the
// cluster has its size and its template, and no volume is lost.
func TestNoCopyIsLostOnRandomWalks(t *testing.T) {
	removals, reclaimed, updates, lost, replaced := 0, 0, 0, 0, 0
	seeds := tier.Seeds(t, 200)
	for _, seed := range seeds {
		w := newWalk(seed)
		w.run(1500, true)
		for _, n := range w.Pods {
			n.Silent = 0
		}
		clear(w.requested)
		// Each step waits for the copies, which may take minutes.
		for kept, seconds := 0, 0; kept < 3 && seconds < 9000; seconds += 100 {
			if w.run(100, false); w.settled() {
				kept++
			} else {
				kept = 0
			}
		}
		if len(w.Problems) > 0 {
			t.Fatalf("seed %d: %d problems, the first is: %s", seed, len(w.Problems), w.Problems[0])
		}
		if w.Replicas != w.target() || len(w.Online()) != int(w.Replicas) {
			t.Fatalf("the walk with seed %d ends with %d nodes, %d of them online, want %d; it waits for %+v, %+v and %+v", seed, w.Replicas, len(w.Online()), w.target(),
				w.last.Step.Blocked, w.last.Rollout.Waiting, w.last.Replacement.Waiting)
		}
		for _, n := range w.Pods {
			if n.Revision != w.image {
				t.Fatalf("the walk with seed %d ends with template %s of node %d, want %s", seed, n.Revision, n.Ordinal, w.image)
			}
		}
		if w.wanted.ReplicationFactor == 1 && w.removals+w.reclaimed+w.replaced > 0 {
			t.Fatalf("the walk with seed %d removes %d nodes and %d volumes with a single copy, and replaces %d", seed, w.removals, w.reclaimed, w.replaced)
		}
		if w.VolumesLost() > 0 {
			t.Fatalf("the walk with seed %d ends with %d lost volumes", seed, w.VolumesLost())
		}
		if w.tooLarge() {
			t.Fatalf("the walk with seed %d ends with %d nodes at %v commands per second", seed, w.Replicas, w.Rate)
		}
		removals += w.removals
		reclaimed += w.reclaimed
		updates += w.updates
		lost += w.lost
		replaced += w.replaced
	}
	t.Logf("%d removals, %d volumes reclaimed, %d updates, %d volumes lost, %d replaced", removals, reclaimed, updates, lost, replaced)
	if len(seeds) > 1 && (removals < 150 || reclaimed < 40 || updates < 400 || lost < 100 || replaced < lost) {
		t.Errorf("only %d removals, %d reclaimed volumes, %d updates, and %d of %d lost volumes are replaced", removals, reclaimed, updates, replaced, lost)
	}
}

// A cluster whose nodes have all restarted with their volumes shrinks, and each partition takes
// long to copy: the join gauges of such nodes show nothing, and rounds begin all the time.
func TestAShrinkWaitsForSlowCopies(t *testing.T) {
	for _, seed := range tier.Seeds(t, 20) {
		w := newWalk(seed)
		w.wanted = scale.Wanted{Nodes: 3, ReplicationFactor: 2, Reclaim: true}
		w.Model = storetest.New(w.Rand, 6)
		w.Volumes.CopySteps = 72
		for range 6 {
			w.Evict()
			for range 60 {
				w.Tick()
			}
		}
		w.run(3600, false)
		if len(w.Problems) > 0 {
			t.Fatalf("seed %d: %d problems, the first is: %s", seed, len(w.Problems), w.Problems[0])
		}
		if w.Replicas != 3 || w.reclaimed != 3 {
			t.Fatalf("seed %d ends with %d nodes and %d reclaimed volumes, want 3 and 3", seed, w.Replicas, w.reclaimed)
		}
	}
}

// With one copy of each partition every removal would lose data.
func TestASingleCopyIsKept(t *testing.T) {
	for _, seed := range tier.Seeds(t, 20) {
		w := newWalk(seed)
		w.wanted = scale.Wanted{Nodes: 3, ReplicationFactor: 1, Reclaim: true}
		w.Model = storetest.NewFactor(w.Rand, 5, 1)
		w.run(900, true)
		if len(w.Problems) > 0 || w.removals > 0 || w.reclaimed > 0 {
			t.Fatalf("seed %d: %d removals, %d volumes reclaimed, problems: %.200q", seed, w.removals, w.reclaimed, w.Problems)
		}
	}
}

// memory has what the operator remembers between two syncs and loses in a restart.
type memory struct {
	rates   *observe.Rates
	history *observe.History
	nodes   *observe.Nodes
}

func newMemory() *memory {
	return &memory{observe.NewRates(10 * time.Second), observe.NewHistory(time.Minute), &observe.Nodes{}}
}

// observe reads the model as the operator reads a cluster.
func (w *walk) observe(memory *memory, window, sinceScale time.Duration) (*scale.Observation, *scale.Load, []scale.Volume) {
	o := &scale.Observation{
		Name: "demo", ReplicationFactor: w.wanted.ReplicationFactor, Replicas: w.Replicas, StatusReplicas: int32(len(w.Pods)), Current: w.Observed == w.Generation,
		TemplateCurrent: w.Update.Template == w.image, CurrentRevision: w.Update.CurrentRevision, UpdateRevision: w.Update.UpdateRevision,
		Partition: w.Update.Partition, OnDelete: w.Update.OnDelete,
	}
	for ordinal := range w.Replicas {
		claim := w.claimOf(ordinal)
		lost := scale.Lost{Ordinal: ordinal, Requested: w.requested[claim], Begun: w.replacing == claim, Deleting: w.DeletingVolume(ordinal)}
		if w.VolumeLost(ordinal) {
			lost.Why, lost.For = "its Kubernetes Node does not exist", time.Duration(w.Second-w.lostAt[claim])*time.Second
		}
		if lost.Requested || lost.Begun || lost.Deleting || lost.Why != "" {
			o.Lost = append(o.Lost, lost)
		}
	}
	o.Settle, o.SinceRemoval = w.settle, time.Duration(w.Second-w.lastRemoved)*time.Second
	readings, known := map[observe.Process]observe.Reading{}, map[int32]observe.Node{}
	for _, n := range w.Pods {
		pod := scale.Pod{Ordinal: n.Ordinal, Ready: n.Ready(), Terminating: n.Terminating, Revision: n.Revision, Factor: int32(n.Factor)}
		process := observe.Process{Pod: types.UID(strconv.Itoa(n.UID))}
		seen := observe.Node{Process: process, Terminating: n.Terminating}
		reading := observe.Reading{At: w.Now()}
		if pod.Sample = w.Sample(n); pod.Sample != nil {
			seen.Members = pod.Sample.Members
			seen.Rounds, seen.Moved = ptr.To(n.Rounds), ptr.To(n.Moved())
			reading.Total = ptr.To(n.Commands)
		}
		if known[n.Ordinal] = seen; !n.Terminating {
			readings[process] = reading
		}
		o.Pods = append(o.Pods, pod)
	}
	memory.nodes.Observe(w.Now(), known)
	o.SinceChange = memory.nodes.SinceChange(w.Now())
	for i := range o.Pods {
		node := known[o.Pods[i].Ordinal]
		o.Pods[i].Rounds, o.Pods[i].QuietRounds = memory.nodes.Rounds(node), memory.nodes.QuietRounds(node)
	}
	load := &scale.Load{SinceScale: &sinceScale}
	if load.Rate, load.Complete = memory.rates.Add(readings); load.Complete {
		memory.history.Add(w.Now(), window, load.Rate)
	} else {
		memory.history.Add(w.Now(), window, nil)
	}
	load.Peak = memory.history.Peak(w.Now(), window)
	var volumes []scale.Volume
	for _, ordinal := range w.Volumes.Ordinals() {
		volumes = append(volumes, scale.Volume{Ordinal: ordinal})
	}
	return o, load, volumes
}
