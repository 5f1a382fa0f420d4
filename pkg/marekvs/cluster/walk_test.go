// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
	"nstance.dev/operator/pkg/marekvs/storetest"
	"nstance.dev/operator/pkg/testing/tier"
)

// walk runs operators on a model of the store, with random failures.
type walk struct {
	*api
	*storetest.Model

	// leader is the leading operator. former is an earlier leader that may still sync, with
	// old caches.
	leader, former *instance
	// calm ends all failures.
	calm bool
	// settle is how long the nodes must be unchanged.
	settle time.Duration
	// fixed keeps the spec from changing.
	fixed bool
	// interrupted is true while interrupt runs within a sync.
	interrupted bool
	// published has the state of each Pod at the API server, by name. claimed has the ordinals whose claims exist there.
	// status is the status of the StatefulSet that was published last.
	published map[string]publishedPod
	claimed   map[int32]bool
	status    publishedSet
	// addresses has the address of each node by its UID, free the addresses of nodes that have ended:
	// Pods of another cluster have them now, and new nodes get them.
	addresses map[int]string
	free      []string

	// deleting has, by ordinal, how many volumes of the node had been deleted when its claim was deleted:
	// the claim exists until its volume is deleted, too.
	deleting map[int32]int

	removals, reclaimed, failures, updates, lost, replaced, doomed int64
}

type publishedPod struct {
	uid   int
	state state
}

// publishedSet has what the status of the StatefulSet depends on: its fields, and the version of the API server.
type publishedSet struct {
	observed                        bool
	pods                            int
	currentRevision, updateRevision string
	version                         string
}

func newWalk(t testing.TB, seed uint64, change func(*rand.Rand, *v1alpha1.MarekvsCluster)) *walk {
	random := rand.New(rand.NewPCG(seed, 5))
	cluster := demo()
	cluster.UID, cluster.Spec.Storage.Size = "", ptr.To(quantity("10Gi"))
	change(random, cluster)
	w := &walk{
		api: newSoleAPI(t), published: map[string]publishedPod{}, claimed: map[int32]bool{}, addresses: map[int]string{},
		deleting: map[int32]int{}, calm: true,
	}
	w.settle = []time.Duration{0, settle}[random.IntN(2)]
	w.kinds.Add(cluster)
	w.builtIn.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host", Labels: map[string]string{corev1.LabelHostname: "host"}}})
	w.leader = w.newOperator()
	w.leader.show()
	_, err := w.leader.syncStale(t.Context())
	require.NoError(t, err)
	w.Model = storetest.NewFactor(random, *w.set().Spec.Replicas, int(wantedOf(w.cluster().WithDefaults()).ReplicationFactor))
	w.Volumes.CopySteps = []int{1, 5, 20, 40}[random.IntN(4)]
	w.Update = storetest.Update{Template: "i", CurrentRevision: "i", UpdateRevision: "i", Partition: w.Replicas}
	for _, n := range w.Pods {
		n.Revision = "i"
	}
	w.publish()
	w.builtIn.Interrupt, w.kinds.Interrupt, w.calm = w.fault, w.fault, false
	return w
}

// newOperator starts an operator.
func (w *walk) newOperator() *instance {
	i := w.newInstance(&interruptedClient{Interface: w.kube, before: w.interrupt}, w)
	i.Settle = w.settle
	i.filled = map[schema.GroupVersionResource]string{}
	return i
}

// address returns the address of a node, if possible an address that another node had before.
func (w *walk) address(n *storetest.Node) string {
	at, known := w.addresses[n.UID]
	switch {
	case known:
		return at
	case len(w.free) > 0:
		at, w.free = w.free[0], w.free[1:]
	default:
		at = fmt.Sprintf("10.0.0.%d", len(w.addresses))
	}
	w.addresses[n.UID] = at
	return at
}

// freeAddresses frees the addresses of nodes that have ended.
func (w *walk) freeAddresses() {
	for _, uid := range slices.Sorted(maps.Keys(w.addresses)) {
		if at := w.addresses[uid]; at != "" && !slices.ContainsFunc(w.Pods, func(n *storetest.Node) bool { return n.UID == uid }) {
			w.addresses[uid] = ""
			w.free = append(w.free, at)
		}
	}
}

// Scrape implements Scraper. At an address that is free a node of another cluster responds, for which
// all is well.
func (w *walk) Scrape(_ context.Context, addresses []string) []observe.Scrape {
	results := make([]observe.Scrape, len(addresses))
	for i, at := range addresses {
		results[i].Err = errors.New("the node does not respond")
		if slices.Contains(w.free, at) {
			results[i] = observe.Scrape{At: w.clock.Now(), Metrics: &observe.Metrics{
				Sample: scale.Sample{
					Underreplicated: ptr.To[int64](0), Members: ptr.To(int64(w.Replicas)), EffectiveReplicas: ptr.To[int64](3), Joining: ptr.To[int64](0),
				},
				Commands: ptr.To(0.0), Rounds: ptr.To(int64(w.Second)), Moved: ptr.To[int64](0),
			}}
			continue
		}
		for _, n := range w.Pods {
			if w.address(n) != at {
				continue
			}
			sample := w.Sample(n)
			if sample == nil {
				continue
			}
			metrics := &observe.Metrics{Sample: *sample, Commands: ptr.To(float64(int64(n.Commands))), Rounds: ptr.To(n.Rounds), Moved: ptr.To(n.Moved())}
			results[i] = observe.Scrape{Metrics: metrics, At: w.clock.Now()}
		}
	}
	return results
}

// publish writes the state of the model to the API server.
func (w *walk) publish() {
	w.clock.SetTime(w.Now())
	w.freeAddresses()
	exists := map[string]bool{}
	for _, n := range w.Pods {
		exists[podName(n.Ordinal)] = true
		w.publishPod(n)
	}
	for name := range w.published {
		if !exists[name] {
			w.builtIn.Remove(podResource, "ns", name)
			delete(w.published, name)
		}
	}
	for _, ordinal := range slices.Sorted(maps.Keys(w.deleting)) {
		if w.DeletedVolumes[ordinal] > w.deleting[ordinal] {
			w.builtIn.Remove(claimResource, "ns", newClaim(ordinal).Name)
			delete(w.deleting, ordinal)
			delete(w.claimed, ordinal)
		}
	}
	for _, ordinal := range w.Volumes.Ordinals() {
		if !w.claimed[ordinal] {
			claim := newClaim(ordinal)
			claim.Finalizers = []string{protection}
			w.builtIn.Add(claim)
			w.claimed[ordinal] = true
		}
	}
	w.publishSet()
}

// publishSet writes the status of the StatefulSet.
func (w *walk) publishSet() {
	now := publishedSet{w.Observed == w.Generation, len(w.Pods), w.Update.CurrentRevision, w.Update.UpdateRevision, w.builtIn.Version()}
	if w.status == now {
		return
	}
	set := w.set()
	status := appsv1.StatefulSetStatus{
		ObservedGeneration: set.Status.ObservedGeneration, Replicas: int32(len(w.Pods)),
		CurrentRevision: w.Update.CurrentRevision, UpdateRevision: w.Update.UpdateRevision,
	}
	if w.Observed == w.Generation {
		status.ObservedGeneration = set.Generation
	}
	if !equality.Semantic.DeepEqual(set.Status, status) {
		set.Status = status
		w.replace(setResource, set)
	}
	now.version = w.builtIn.Version()
	w.status = now
}

func (w *walk) publishPod(n *storetest.Node) {
	now := publishedPod{n.UID, state{ready: n.Ready(), terminating: n.Terminating}}
	before, exists := w.published[podName(n.Ordinal)]
	if before == now {
		return
	}
	set := w.set()
	set.Status.UpdateRevision = n.Revision
	pod := newPod(set, n.Ordinal, fmt.Sprintf("pod-%d", n.UID), w.address(n))
	if !n.Ready() {
		pod.Status.Conditions[0].Status = "False"
	}
	if n.Stuck() {
		setPending(pod, "")
	}
	pod.CreationTimestamp.Time = w.Now()
	if n.Terminating {
		pod.DeletionTimestamp, pod.Finalizers = ptr.To(pod.CreationTimestamp), []string{"test/draining"}
	}
	if exists {
		w.replace(podResource, pod)
	} else {
		w.builtIn.Add(pod)
	}
	w.published[pod.Name] = now
}

// replace replaces an object without the cost of an update, which computes managed fields.
func (w *walk) replace(resource schema.GroupVersionResource, object runtime.Object) {
	accessor, err := meta.Accessor(object)
	require.NoError(w.t, err)
	w.builtIn.Remove(resource, accessor.GetNamespace(), accessor.GetName())
	w.builtIn.Add(object)
}

// adopt applies the writes of the operators to the model.
func (w *walk) adopt() {
	set := w.set()
	if replicas := *set.Spec.Replicas; replicas != w.Replicas {
		if replicas < w.Replicas {
			w.removals++
		}
		w.Resize(replicas)
	}
	template := set.Spec.Template.Spec.Containers[0].Image
	if template != w.Update.Template {
		w.updates++
	}
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		w.Roll(template, *rolling.Partition, false)
	} else {
		w.Roll(template, w.Update.Partition, true)
	}
	for _, name := range slices.Sorted(maps.Keys(w.published)) {
		pod := w.published[name]
		if _, err := w.kube.Tracker().Get(podResource, "ns", name); err == nil {
			continue
		}
		delete(w.published, name)
		for _, n := range w.Pods {
			if n.UID == pod.uid {
				w.DeletePod(n)
			}
		}
	}
	for _, claim := range w.claims() {
		ordinal, _ := scale.VolumeOrdinal("demo", claim.Name)
		_, known := w.deleting[ordinal]
		switch {
		case claim.DeletionTimestamp == nil || known:
		case ordinal < w.Replicas:
			w.deleting[ordinal] = w.DeletedVolumes[ordinal]
			w.DeleteClaim(ordinal)
			w.replaced++
		default:
			w.builtIn.Remove(claimResource, "ns", claim.Name)
			delete(w.claimed, ordinal)
			w.DeleteVolume(ordinal)
			w.reclaimed++
		}
	}
}

// lose loses a volume together with its Kubernetes Node, unless others are lost that may have the other
// copies. A node that has not started since it was added, or replaced, has no volume yet.
func (w *walk) lose(ordinal int32) {
	factor := int(w.cluster().WithDefaults().Spec.ReplicationFactor)
	if _, deleting := w.deleting[ordinal]; deleting || !w.claimed[ordinal] || w.VolumesLost() >= factor-1 || !w.LoseVolume(ordinal) {
		return
	}
	w.lost++
	w.changeClaim(ordinal, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = fmt.Sprintf("local-%d", w.lost)
		w.builtIn.Add(localVolume(claim.Spec.VolumeName, "former-host"))
	})
	w.publish()
}

func (w *walk) changeClaim(ordinal int32, change func(*corev1.PersistentVolumeClaim)) {
	object, err := w.kube.Tracker().Get(claimResource, "ns", newClaim(ordinal).Name)
	if err == nil {
		claim := object.(*corev1.PersistentVolumeClaim).DeepCopy()
		change(claim)
		w.builtIn.Update(claimResource, claim)
	}
}

// fault fails requests to the API server. Some of them still have their effect.
func (w *walk) fault(action clienttesting.Action) (done bool, err error) {
	if w.calm || w.IntN(10) > 0 {
		return false, nil
	}
	w.failures++
	switch w.IntN(4) {
	case 0:
		return false, apierrors.NewConflict(action.GetResource().GroupResource(), "demo", errors.New("changed"))
	case 1:
		return false, apierrors.NewTooManyRequests("busy", 1)
	case 2:
		return true, apierrors.NewTimeoutError("the response is lost", 1)
	}
	return false, apierrors.NewInternalError(errors.New("broken"))
}

// interrupt is called within a sync, between its last read and its write.
func (w *walk) interrupt() {
	if w.calm || w.interrupted || w.IntN(3) > 0 {
		return
	}
	w.interrupted = true
	defer func() { w.interrupted = false }()
	switch w.IntN(3) {
	case 0:
		w.second()
	case 1:
		if !w.fixed {
			w.change(w.changeSpec)
		}
	case 2:
		if w.former != nil {
			w.pass(w.former)
		}
	}
}

func (w *walk) changeSpec(c *v1alpha1.MarekvsCluster) {
	switch {
	case w.IntN(3) == 0:
		c.Spec.Image = fmt.Sprintf("i-%d", w.Second)
	case c.Spec.Autoscale == nil:
		c.Spec.Nodes = 3 + w.Int32N(5)
	case w.IntN(4) == 0:
		c.Spec.Autoscale.MaxNodes = 5 + w.Int32N(4)
	}
}

// disturb causes a random event, or does nothing.
func (w *walk) disturb() {
	switch w.IntN(150) {
	case 0, 1:
		w.Evict()
	case 2:
		w.Pods[w.IntN(len(w.Pods))].Silent = w.IntN(90)
	case 3: // a restart
		w.leader = w.newOperator()
	case 4, 5: // the former leader does not know yet that another leads
		w.former, w.leader = w.leader, w.newOperator()
	case 6, 7:
		w.Rate = float64(w.IntN(40_000))
	case 8, 9:
		w.change(w.changeSpec)
	case 10:
		w.Drain(60)
	case 11, 14:
		w.lose(w.Int32N(w.Replicas))
	case 12: // on purpose, by mistake, or too early
		w.changeClaim(w.Int32N(w.Replicas), requestReplacement)
	case 13, 15:
		w.deleteClaim(w.Int32N(w.Replicas))
	}
}

// deleteClaim deletes the claim of a node as a user does, unless its Pod ends already. The claim and its volume exist
// until the Pod ends.
func (w *walk) deleteClaim(ordinal int32) {
	stays := slices.ContainsFunc(w.Pods, func(n *storetest.Node) bool {
		return n.Ordinal == ordinal && n.Ready() && !n.Terminating && (ordinal < w.Update.Partition || n.Revision == w.Update.Template)
	})
	if !stays {
		return
	}
	before := w.replaced
	_ = w.kube.CoreV1().PersistentVolumeClaims("ns").Delete(w.t.Context(), newClaim(ordinal).Name, metav1.DeleteOptions{})
	w.adopt()
	w.publish()
	w.doomed, w.replaced = w.doomed+w.replaced-before, before
}

// keepVolumes gives the volumes of claims that are being deleted to other claims: nothing else ends the deletion of a
// claim whose volume has the only copy of data.
func (w *walk) keepVolumes() {
	for _, ordinal := range slices.Sorted(maps.Keys(w.deleting)) {
		w.KeepVolume(ordinal)
		w.changeClaim(ordinal, func(claim *corev1.PersistentVolumeClaim) {
			claim.UID, claim.DeletionTimestamp = types.UID(fmt.Sprintf("kept-%d-%d", ordinal, w.Second)), nil
		})
		delete(w.deleting, ordinal)
	}
}

// second lets a second pass.
func (w *walk) second() {
	w.Tick()
	w.publish()
}

// pass syncs once. Some caches may be old.
func (w *walk) pass(operator *instance) {
	operator.showSome(func() bool { return w.calm || w.IntN(5) > 0 })
	_, err := operator.syncStale(w.t.Context())
	if w.calm {
		require.NoError(w.t, err)
	}
	for len(operator.recorder.Events) > 0 {
		<-operator.recorder.Events
	}
	w.builtIn.Writes()
	w.kinds.Writes()
	w.adopt()
	w.publish()
}

func (w *walk) run(seconds int) {
	for range seconds {
		w.second()
		if !w.calm {
			w.disturb()
		}
		if w.Second%10 == 0 {
			w.pass(w.leader)
		}
		if w.former != nil && w.IntN(30) == 0 {
			w.pass(w.former)
			if w.IntN(3) == 0 {
				w.former = nil
			}
		}
	}
}

// shrink lets the cluster shrink to its least size.
func (w *walk) shrink() {
	w.Rate = 0
	w.change(func(c *v1alpha1.MarekvsCluster) {
		if c.Spec.Autoscale == nil {
			c.Spec.Nodes = 3
		}
	})
}

// end stops all failures, and expects the cluster to replace its lost volumes, to reach its size and its
// template, and to keep them for 100 seconds.
func (w *walk) end() {
	w.calm, w.former = true, nil
	for _, n := range w.Pods {
		n.Silent = 0
	}
	updated := func() bool {
		return !slices.ContainsFunc(w.Pods, func(n *storetest.Node) bool { return n.Revision != w.cluster().Spec.Image })
	}
	ended := func() bool {
		return w.target() == w.Replicas && len(w.Online()) == int(w.Replicas) && updated() && w.VolumesLost() == 0 &&
			len(w.deleting) == 0
	}
	if w.cluster().WithDefaults().Spec.ReplicationFactor == 1 {
		w.run(100)
		w.keepVolumes()
	}
	// An update of seven nodes and the removal of three take 600 seconds each, if partitions are copied slowly.
	const look = 20
	for kept, seconds := 0, 0; kept < 6 && seconds < 12000; seconds += look {
		if w.run(look); ended() {
			kept++
		} else {
			kept = 0
		}
	}
	require.Empty(w.t, w.Problems)
	require.Equal(w.t, w.target(), w.Replicas, "the size at the end: %+v", w.cluster().Status)
	require.Len(w.t, w.Online(), int(w.Replicas))
	require.True(w.t, updated(), "%+v", w.cluster().Status)
	require.Zero(w.t, w.VolumesLost(), "%+v", w.cluster().Status)
	require.Empty(w.t, w.deleting, "%+v", w.cluster().Status)
}

// target returns the expected size at the end.
func (w *walk) target() int32 {
	wanted := wantedOf(w.cluster().WithDefaults())
	size := w.Replicas
	switch target := scale.FixedTarget(wanted.Nodes, wanted.ReplicationFactor); {
	case wanted.ReplicationFactor == 1:
		return max(size, target) // no node is ever removed
	case wanted.Autoscaler == nil:
		return target
	}
	for size > wanted.Autoscaler.Clamp(0) && w.Rate/float64(size-1) < 0.6*5000 {
		size--
	}
	return max(size, wanted.Autoscaler.Clamp(int32((w.Rate+4999)/5000)))
}

// Everything happens at random: load, missing metrics, evictions, drains, restarts of the operator, two
// operators at a time, old caches, requests that fail or whose response is lost, changes
// of the spec, which also update the Pods, lost volumes, requests to replace nodes, which may work, and claims that
// users delete. Nodes get the addresses of nodes that have ended, and other clusters do, too. Partitions take up to 40
// seconds to copy, with 1 to 3 copies of each. No partition ever loses its last copy, no volume of a node is
// deleted but to replace it, and in the end the cluster has its size and its template, and no volume is
// lost.
func TestNoCopyIsLostOnRandomWalks(t *testing.T) {
	var removals, reclaimed, failures, updates, lost, replaced, doomed atomic.Int64
	seeds := tier.Seeds(t, tier.Pick(20, 210))
	t.Run("walks", func(t *testing.T) {
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				t.Parallel()
				w := newWalk(t, seed, func(random *rand.Rand, c *v1alpha1.MarekvsCluster) {
					c.Spec.Nodes, c.Spec.ReclaimPvcs = 3+random.Int32N(5), random.IntN(2) == 0
					c.Spec.ReplicationFactor = 1 + random.Int32N(3)
					c.Spec.ReclaimAfterSeconds, c.Spec.Storage.ReplaceLostAfterSeconds = 60, 60
					if random.IntN(2) == 0 {
						autoscaled(c)
						c.Spec.Autoscale.ScaleDownStabilizationSeconds = ptr.To[int32](60)
					}
				})
				w.run(300)
				w.shrink()
				w.end()
				if w.cluster().Spec.ReplicationFactor == 1 {
					require.Zero(t, w.removals+w.reclaimed+w.replaced, "the only copy of data")
				}
				removals.Add(w.removals)
				reclaimed.Add(w.reclaimed)
				updates.Add(w.updates)
				failures.Add(w.failures)
				lost.Add(w.lost)
				replaced.Add(w.replaced)
				doomed.Add(w.doomed)
			})
		}
	})
	t.Logf("%d removals, %d volumes reclaimed, %d updates, %d failures, %d volumes lost, %d replaced, %d claims deleted by users",
		removals.Load(), reclaimed.Load(), updates.Load(), failures.Load(), lost.Load(), replaced.Load(), doomed.Load())
	if walks := int64(len(seeds)); walks > 1 {
		assert.Greater(t, removals.Load(), walks/2)
		assert.Greater(t, reclaimed.Load(), walks/8)
		assert.Greater(t, updates.Load(), walks/2)
		assert.Greater(t, failures.Load(), 3*walks)
		assert.Greater(t, lost.Load(), walks/2)
		assert.GreaterOrEqual(t, replaced.Load(), lost.Load())
		assert.Greater(t, doomed.Load(), walks/4)
	}
}

// While a cluster shrinks from 6 to 3 nodes, two Pods are never being deleted at the same
// time.
func TestAShrinkDeletesOnePodAtATime(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(5, 21)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := newWalk(t, seed, func(_ *rand.Rand, c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = 6 })
			w.fixed = true
			w.change(sized(3))
			for range 300 {
				w.second()
				if w.IntN(100) == 0 {
					w.Pods[w.IntN(len(w.Pods))].Silent = w.IntN(60)
				}
				if w.IntN(100) == 0 {
					w.former, w.leader = w.leader, w.newOperator()
				}
				w.pass(w.leader)
				if w.former != nil {
					w.pass(w.former)
				}
			}
			w.end()
			require.Equal(t, int32(3), w.Replicas)
			require.Equal(t, 1, w.MostTerminating)
		})
	}
}

// interruptedClient calls before between the last read of a sync and its write of a
// StatefulSet.
type interruptedClient struct {
	kubernetes.Interface

	before func()
}

func (c *interruptedClient) AppsV1() appsv1client.AppsV1Interface {
	return &interruptedApps{c.Interface.AppsV1(), c.before}
}

type interruptedApps struct {
	appsv1client.AppsV1Interface

	before func()
}

func (c *interruptedApps) StatefulSets(namespace string) appsv1client.StatefulSetInterface {
	return &interruptedSets{c.AppsV1Interface.StatefulSets(namespace), c.before}
}

type interruptedSets struct {
	appsv1client.StatefulSetInterface

	before func()
}

func (c *interruptedSets) Apply(ctx context.Context, set *appsv1ac.StatefulSetApplyConfiguration, options metav1.ApplyOptions) (*appsv1.StatefulSet, error) {
	c.before()
	return c.StatefulSetInterface.Apply(ctx, set, options)
}
