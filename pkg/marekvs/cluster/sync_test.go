// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	marekvsac "nstance.dev/operator/pkg/generated/applyconfiguration/marekvs/v1alpha1"
	marekvsclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/observe"
)

func sized(nodes int32) func(*v1alpha1.MarekvsCluster) {
	return func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = nodes }
}

func autoscaled(c *v1alpha1.MarekvsCluster) {
	c.Spec.Autoscale = &v1alpha1.Autoscale{
		MinNodes: 3, MaxNodes: 8, TargetOpsPerNode: 5000,
		ScaleDownStabilizationSeconds: ptr.To[int32](120), ScaleUpCooldownSeconds: ptr.To[int32](60),
	}
}

// sizes runs passes, and returns the sequence of sizes of the StatefulSet.
func (h *harness) sizes(passes int) []int32 {
	sizes := []int32{*h.set().Spec.Replicas}
	for range passes {
		h.pass()
		if size := *h.set().Spec.Replicas; size != sizes[len(sizes)-1] {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// Each transition is one event, however often the cluster is synced meanwhile.
func TestEachTransitionIsOneEvent(t *testing.T) {
	h := newHarness(t, sized(5))
	h.change(sized(4))
	h.under = 7
	h.settle()
	assert.Equal(t, []string{"Warning ScaleDownBlocked 7 partitions under-replicated."}, h.events())
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	blocked := conditionOf(h, v1alpha1.ConditionScaleDownBlocked)
	assert.Equal(t, h.cluster().Generation, blocked.ObservedGeneration)

	h.under = 0
	h.settle()
	assert.Equal(t, []int32{4}, h.sizes(20))
	assert.Equal(t, []string{
		"Normal ScaledDown Scaled from 5 to 4 nodes",
		"Normal ScaleDownUnblocked The removal of a node is not blocked any more",
	}, h.events())
	h.change(sized(6))
	h.settle()
	assert.Equal(t, []string{"Normal ScaledUp Scaled from 4 to 6 nodes"}, h.events())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

func conditionOf(h *harness, kind string) *metav1.Condition {
	h.t.Helper()
	for _, condition := range h.cluster().Status.Conditions {
		if condition.Type == kind {
			return &condition
		}
	}
	h.t.Fatalf("no condition %s", kind)
	return nil
}

// The creation sets no time of a change. A growth and a removal each set their time.
func TestTimesOfChanges(t *testing.T) {
	h := newHarness(t, nil)
	assert.Nil(t, h.cluster().Status.LastScaleUpTime)
	assert.Nil(t, h.cluster().Status.LastScaleDownTime)
	h.change(sized(4))
	grown := h.clock.Now()
	h.settle()
	require.NotNil(t, h.cluster().Status.LastScaleUpTime)
	assert.True(t, h.cluster().Status.LastScaleUpTime.Time.Equal(grown))
	assert.Nil(t, h.cluster().Status.LastScaleDownTime)
	h.change(sized(3))
	removed := h.clock.Now()
	h.settle()
	require.NotNil(t, h.cluster().Status.LastScaleDownTime)
	assert.True(t, h.cluster().Status.LastScaleDownTime.Time.Equal(removed))
	assert.True(t, h.cluster().Status.LastScaleUpTime.Time.Equal(grown))
}

// The worked example of the first description.
func TestTheWorkedExample(t *testing.T) {
	h := newHarness(t, autoscaled)
	h.rate = 22_000
	assert.Equal(t, []int32{3, 5}, h.sizes(30))
	h.rate = 6_000
	assert.Equal(t, []int32{5, 4, 3}, h.sizes(60))
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// Without autoscale the cluster shrinks to its nodes, under the same conditions, and the
// stabilization still separates the removals.
func TestRemovedAutoscaleShrinksSlowly(t *testing.T) {
	h := newHarness(t, autoscaled)
	h.rate = 22_000
	h.sizes(30)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Autoscale = nil })
	h.under = 1
	assert.Equal(t, []int32{5}, h.sizes(30), "blocked")
	h.under = 0
	h.pass()
	assert.Equal(t, int32(4), *h.set().Spec.Replicas)
	assert.Equal(t, []int32{4}, h.sizes(10), "stabilization")
	assert.Equal(t, []int32{4, 3}, h.sizes(10))
}

// Claims of removed nodes are deleted, claims of nodes and of other owners never.
func TestClaimsOfRemovedNodesAreDeleted(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { reclaiming(c); c.Spec.Nodes = 5 })
	unlabeled, odd := newClaim(6), newClaim(7)
	delete(unlabeled.Labels, v1alpha1.LabelInstance)
	odd.Name = "data-demo-007"
	h.builtIn.Add(unlabeled)
	h.builtIn.Add(odd)
	h.change(sized(3))
	for range 60 {
		h.pass()
		claims := h.claimNames()
		for ordinal := range *h.set().Spec.Replicas {
			require.Contains(t, claims, newClaim(ordinal).Name)
		}
	}
	assert.Equal(t, []string{"data-demo-0", "data-demo-007", "data-demo-1", "data-demo-2", "data-demo-6"}, h.claimNames())
	assert.Equal(t, []string{
		"Normal ScaledDown Scaled from 5 to 4 nodes", "Normal ScaledDown Scaled from 4 to 3 nodes",
		"Normal VolumeReclaimed Deleted volume claim data-demo-3 of a removed node",
		"Normal VolumeReclaimed Deleted volume claim data-demo-4 of a removed node",
	}, h.events())
	h.writes()
	h.expect()
}

// Without reclaimPvcs no claim is deleted.
func TestClaimsAreKept(t *testing.T) {
	h := newHarness(t, sized(5))
	h.change(sized(3))
	assert.Equal(t, []int32{5, 4, 3}, h.sizes(60))
	assert.Len(t, h.claimNames(), 5)
}

// No claim is deleted while the Pod of its ordinal exists.
func TestTheClaimOfAPodThatIsBeingDeletedIsKept(t *testing.T) {
	h := newHarness(t, reclaiming)
	h.draining = true
	h.change(sized(3))
	assert.Equal(t, []int32{4, 3}, h.sizes(30))
	assert.Len(t, h.claimNames(), 4)
	h.draining = false
	h.sizes(30)
	assert.Len(t, h.claimNames(), 3)
}

// A claim that changed after it was read is not deleted, and an error is a condition and an
// event.
func TestAClaimIsDeletedOnlyAsItWasRead(t *testing.T) {
	h := newHarness(t, reclaiming)
	h.builtIn.Fail("delete persistentvolumeclaims data-demo-3", apierrors.NewForbidden(claimResource.GroupResource(), "data-demo-3", errors.New("no")))
	h.change(sized(3))
	for range 20 {
		h.show()
		_, err := h.syncStale(t.Context())
		h.runStatefulSet()
		if h.advance(period); err != nil {
			require.ErrorContains(t, err, "delete volume claim data-demo-3")
		}
	}
	assert.Equal(t, "False DeleteFailed", reason(h.cluster().Status, v1alpha1.ConditionReconciled))
	recorded := h.events()
	require.Len(t, recorded, 2)
	assert.Contains(t, recorded[1], "Warning DeleteFailed delete volume claim data-demo-3")
	for _, action := range h.kube.Actions() {
		remove, ok := action.(interface{ GetDeleteOptions() metav1.DeleteOptions })
		if !ok || action.GetVerb() != "delete" {
			continue
		}
		conditions := remove.GetDeleteOptions().Preconditions
		require.NotNil(t, conditions)
		assert.NotNil(t, conditions.UID)
		assert.NotNil(t, conditions.ResourceVersion)
	}
	h.builtIn.Fail("delete persistentvolumeclaims data-demo-3", nil)
	h.sizes(10)
	assert.Len(t, h.claimNames(), 3)
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionReconciled))
}

// A cluster that is created again begins with the nodes that have volumes, and no volume is
// deleted before the data was copied.
func TestAClusterBeginsWithItsVolumes(t *testing.T) {
	h := newEmpty(t, func(c *v1alpha1.MarekvsCluster) {
		autoscaled(c)
		c.Spec.ReclaimPvcs, c.Spec.ReclaimAfterSeconds = true, 1
	})
	for ordinal := range int32(8) {
		h.builtIn.Add(newClaim(ordinal))
	}
	h.step()
	assert.Equal(t, int32(8), *h.set().Spec.Replicas)
	for range 200 {
		h.pass()
		claims := h.claimNames()
		for ordinal := range *h.set().Spec.Replicas {
			require.Contains(t, claims, newClaim(ordinal).Name)
		}
	}
	assert.Equal(t, int32(3), *h.set().Spec.Replicas)
	assert.Len(t, h.claimNames(), 3)
}

// Pods of the same labels that the StatefulSet does not control, and Pods that are
// being deleted, are not scraped.
func TestOnlyNodesAreScraped(t *testing.T) {
	h := newHarness(t, nil)
	other := newPod(h.set(), 7, "other", "10.9.9.9")
	other.OwnerReferences[0].UID = types.UID("other")
	h.builtIn.Add(other)
	pods := h.pods()
	ended := pods[0].DeepCopy()
	ended.DeletionTimestamp, ended.Finalizers = ptr.To(metav1.NewTime(h.clock.Now())), []string{"test/draining"}
	h.builtIn.Update(podResource, ended)
	h.show()
	_, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.Len(t, h.scraped, 2)
	assert.NotContains(t, h.scraped, "10.9.9.9")
	assert.NotContains(t, h.scraped, ended.Status.PodIP)
	assert.Equal(t, ptr.To[int32](2), h.cluster().Status.ReadyNodes)
}

// A user who may create Pods can name the StatefulSet as their owner. Such Pods are not scraped,
// and add nothing to the load.
func TestAForgedPodIsNoNode(t *testing.T) {
	for name, test := range map[string]struct {
		ordinal int32
		change  func(*corev1.Pod)
	}{
		"without the label of the StatefulSet": {3, func(pod *corev1.Pod) { delete(pod.Labels, appsv1.StatefulSetPodNameLabel) }},
		"with the label of another Pod":        {3, func(pod *corev1.Pod) { pod.Labels[appsv1.StatefulSetPodNameLabel] = "demo-0" }},
		"beyond the size":                      {4, func(*corev1.Pod) {}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, sized(4))
			h.rate = 24_000
			h.settle()
			require.Equal(t, "24000.0", h.cluster().Status.OpsPerSecond)
			forged := newPod(h.set(), test.ordinal, "forged", "10.9.9.9")
			test.change(forged)
			if test.ordinal == 3 {
				// Before the StatefulSet controller creates the Pod of this name.
				h.builtIn.Remove(podResource, "ns", podName(3))
			}
			h.builtIn.Add(forged)
			h.show()
			_, err := h.syncStale(t.Context())
			require.NoError(t, err)
			assert.NotContains(t, h.scraped, "10.9.9.9")
			assert.Equal(t, ptr.To(min(test.ordinal, 4)), h.cluster().Status.ReadyNodes)
		})
	}
}

// While a Pod is being deleted, the published rate is the known rate of the remaining
// nodes: the deleted node still executes commands.
func TestTheRateWhileAPodIsBeingDeleted(t *testing.T) {
	h := newHarness(t, sized(4))
	h.rate = 24_000
	h.settle()
	require.Equal(t, "24000.0", h.cluster().Status.OpsPerSecond)
	h.draining = true
	h.change(sized(3))
	assert.Equal(t, []int32{4, 3}, h.sizes(1))
	for range 10 {
		h.pass()
		require.Len(t, h.pods(), 4, "the Pod is being deleted")
		require.Equal(t, "18000.0", h.cluster().Status.OpsPerSecond, "of 3 of 4 nodes")
		require.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionMetricsAvailable))
	}
	h.draining = false
	h.settle()
	require.Len(t, h.pods(), 3)
	assert.Equal(t, "24000.0", h.cluster().Status.OpsPerSecond)
}

// One node that does not report blocks a removal, and the autoscaler keeps the size.
func TestOneSilentNodeBlocks(t *testing.T) {
	h := newHarness(t, sized(4))
	h.change(sized(3))
	h.silent[h.pods()[2].Status.PodIP] = true
	assert.Equal(t, []int32{4}, h.sizes(30))
	assert.Equal(t, "scale-down to 3 deferred: metrics unreachable (3 of 4 pods scraped)", h.cluster().Status.Message)
}

// A removal is decided from the state at the API server, not from an older cache.
func TestARemovalReadsTheAPIServer(t *testing.T) {
	for name, change := range map[string]func(*harness, *corev1.Pod){
		"not ready": func(h *harness, pod *corev1.Pod) {
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
			h.builtIn.Update(podResource, pod)
		},
		"being deleted": func(h *harness, pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.Finalizers = ptr.To(metav1.NewTime(h.clock.Now())), []string{"test/draining"}
			h.builtIn.Update(podResource, pod)
		},
		"deleted": func(h *harness, pod *corev1.Pod) { h.builtIn.Remove(podResource, "ns", pod.Name) },
		"the StatefulSet has changed": func(h *harness, _ *corev1.Pod) {
			set := h.set()
			set.Status.Replicas = 3
			h.builtIn.Update(setResource, set)
		},
	} {
		h := newHarness(t, sized(4))
		h.change(sized(3))
		h.show()
		change(h, h.pods()[0].DeepCopy())
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err, name)
		assert.Equal(t, controller.StaleRetry, requeue, name)
		assert.Empty(t, h.writes(), name)
	}
}

// So is the update of the next Pod.
func TestAnUpdateReadsTheAPIServer(t *testing.T) {
	for name, prepare := range map[string]func(*harness){
		"every Pod works":          func(*harness) {},
		"a Pod is replaced before": func(h *harness) { h.crash(3) },
	} {
		h := newHarness(t, sized(4))
		prepare(h)
		h.change(imaged("new"))
		partition := func() int32 {
			if rolling := h.set().Spec.UpdateStrategy.RollingUpdate; rolling != nil {
				return *rolling.Partition
			}
			return 4 // OnDelete
		}
		h.pass()
		before := partition()
		for range 40 {
			h.show()
			pod := h.pod(0)
			unready := pod.DeepCopy()
			unready.Status.Conditions[0].Status = corev1.ConditionFalse
			h.builtIn.Update(podResource, unready)
			_, err := h.syncStale(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, partition(), before, "%s: demo-0 is not ready", name)
			h.builtIn.Update(podResource, pod)
			h.pass()
			before = partition()
		}
		assert.Equal(t, []string{"new", "new", "new", "new"}, h.revisions(), name)
	}
}

// And the claim of that Pod: if it is being deleted, the volume would be deleted with the Pod.
func TestAnUpdateReadsTheClaim(t *testing.T) {
	h := newHarness(t, nil)
	claim, doomed := h.claim(2), h.claim(2)
	doomed.Finalizers, doomed.DeletionTimestamp = []string{protection}, ptr.To(metav1.NewTime(h.clock.Now()))
	h.change(imaged("new"))
	updated := 0
	for range 20 {
		h.show()
		h.builtIn.Update(claimResource, doomed.DeepCopy())
		_, err := h.syncStale(t.Context())
		require.NoError(t, err)
		require.Equal(t, int32(3), *h.set().Spec.UpdateStrategy.RollingUpdate.Partition)
		h.builtIn.Update(claimResource, claim.DeepCopy())
		h.show()
		_, err = h.syncStale(t.Context())
		require.NoError(t, err)
		if *h.set().Spec.UpdateStrategy.RollingUpdate.Partition < 3 {
			updated++
			break
		}
		h.runStatefulSet()
		h.advance(period)
	}
	assert.Equal(t, 1, updated, "it is updated when the claim is not deleted")
}

// The load must be low for the whole window, whatever the time since the last change.
func TestOneHighRateRestartsTheStabilization(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { autoscaled(c); c.Spec.Nodes = 4 })
	for range 5 {
		h.rate = 20_000
		h.pass()
		h.pass()
		h.rate = 100
		assert.Equal(t, []int32{4}, h.sizes(8))
	}
	assert.Equal(t, []int32{4, 3}, h.sizes(15))
}

// deadlineScraper notes when the context of a scrape ends.
type deadlineScraper struct{ until time.Time }

func (d *deadlineScraper) Scrape(ctx context.Context, addresses []string) []observe.Scrape {
	d.until, _ = ctx.Deadline()
	return make([]observe.Scrape, len(addresses))
}

// Every sync has a deadline.
func TestASyncHasADeadline(t *testing.T) {
	h := newHarness(t, nil)
	scraper := &deadlineScraper{}
	h.Scraper = scraper
	h.show()
	_, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.False(t, scraper.until.IsZero())
}

// slowStatus is a client whose writes of a status fail when their time is over.
type slowStatus struct {
	marekvsclient.MarekvsV1alpha1Interface
}

func (s slowStatus) MarekvsClusters(namespace string) marekvsclient.MarekvsClusterInterface {
	return slowClusters{s.MarekvsV1alpha1Interface.MarekvsClusters(namespace)}
}

type slowClusters struct {
	marekvsclient.MarekvsClusterInterface
}

func (s slowClusters) ApplyStatus(ctx context.Context, c *marekvsac.MarekvsClusterApplyConfiguration, options metav1.ApplyOptions) (*v1alpha1.MarekvsCluster, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.MarekvsClusterInterface.ApplyStatus(ctx, c, options)
}

// silentSets is a client that gets no response to its writes of StatefulSets.
type silentSets struct{ kubernetes.Interface }

func (s silentSets) AppsV1() appsv1client.AppsV1Interface { return silentApps{s.Interface.AppsV1()} }

type silentApps struct{ appsv1client.AppsV1Interface }

func (s silentApps) StatefulSets(namespace string) appsv1client.StatefulSetInterface {
	return silentStatefulSets{s.AppsV1Interface.StatefulSets(namespace)}
}

type silentStatefulSets struct {
	appsv1client.StatefulSetInterface
}

func (silentStatefulSets) Apply(ctx context.Context, _ *appsv1ac.StatefulSetApplyConfiguration, _ metav1.ApplyOptions) (*appsv1.StatefulSet, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A sync that has taken all of its time publishes that, and what it has observed.
func TestASyncThatTakesTooLongPublishesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.Kube, h.Marekvs = silentSets{h.Kube}, slowStatus{h.Marekvs}
		h.change(sized(5))
		began := time.Now()
		_, err := h.syncFresh()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, syncTimeout, time.Since(began))
		status := h.cluster().Status
		assert.Equal(t, "apply StatefulSet demo: context deadline exceeded", conditionOf(h, v1alpha1.ConditionReconciled).Message)
		assert.Equal(t, "False ApplyFailed", reason(status, v1alpha1.ConditionReady))
		assert.Equal(t, h.cluster().Generation, status.ObservedGeneration)
		assert.Equal(t, ptr.To[int32](3), status.ReadyNodes)
		assert.Contains(t, h.events(), "Warning ApplyFailed apply StatefulSet demo: context deadline exceeded")
	})
}

// reclaiming sets 4 nodes, and that claims of removed nodes are deleted.
func reclaiming(c *v1alpha1.MarekvsCluster) {
	c.Spec.Nodes, c.Spec.ReclaimPvcs, c.Spec.ReclaimAfterSeconds = 4, true, 1
}

// untilReclaimable removes node 3, and passes until its claim may be deleted in the next sync,
// which the cache hides until then.
func (h *harness) untilReclaimable() {
	h.t.Helper()
	h.change(sized(3))
	for range 20 {
		h.show()
		require.NoError(h.t, h.Informers.Claims.GetIndexer().Replace(nil, "1"))
		_, err := h.syncStale(h.t.Context())
		require.NoError(h.t, err)
		h.runStatefulSet()
		h.advance(period)
	}
	h.show()
	require.Equal(h.t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
	require.Len(h.t, h.claims(), 4)
	h.writes()
	h.events()
}

// A claim belongs to a cluster only if it has all labels of the cluster. Users keep a claim
// by removing a label, even if the cache still has the label.
func TestAClaimWithoutOneOfTheLabelsIsNeverDeleted(t *testing.T) {
	for label := range children.Labels("demo") {
		claim := newClaim(3)
		delete(claim.Labels, label)
		assert.Empty(t, volumesOf(demo(), []*corev1.PersistentVolumeClaim{claim}), label)

		h := newHarness(t, reclaiming)
		h.untilReclaimable()
		claim.UID = ""
		h.builtIn.Remove(claimResource, "ns", claim.Name)
		h.builtIn.Add(claim)
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err, label)
		assert.Equal(t, controller.StaleRetry, requeue, label)
		h.settle()
		assert.Contains(t, h.claimNames(), claim.Name, label)
		assert.Empty(t, h.events(), label)
	}
	h := newHarness(t, reclaiming)
	h.untilReclaimable()
	h.expect("delete persistentvolumeclaims data-demo-3")
}

// The claim of a removed node that another client deletes first is no error, and no event says
// that the operator deleted it.
func TestAClaimThatWasDeletedByHandIsNotReclaimed(t *testing.T) {
	for name, remove := range map[string]func(*harness){
		"before it is read": func(h *harness) { h.builtIn.Remove(claimResource, "ns", "data-demo-3") },
		"after it was read": func(h *harness) {
			h.builtIn.Fail("delete persistentvolumeclaims data-demo-3", apierrors.NewNotFound(claimResource.GroupResource(), "data-demo-3"))
		},
	} {
		h := newHarness(t, reclaiming)
		h.untilReclaimable()
		remove(h)
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err, name)
		assert.Equal(t, period, requeue, name)
		assert.Empty(t, h.events(), name)
		status := h.cluster().Status
		assert.Equal(t, v1alpha1.PhaseHealthy, status.Phase, name)
		assert.Equal(t, "True AsExpected", reason(status, v1alpha1.ConditionReconciled), name)
	}
}

// A claim of a node that another client deletes belongs to the StatefulSet controller, which
// creates it with the next Pod. The operator writes nothing, and removes no other node until
// the new Pod has its copies.
func TestTheClaimOfANodeThatWasDeletedByHand(t *testing.T) {
	h := newHarness(t, reclaiming)
	h.builtIn.Remove(claimResource, "ns", "data-demo-1")
	h.expect()
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)

	h.change(sized(3))
	pod := h.pods()[1]
	require.Equal(t, "demo-1", pod.Name)
	h.end(&pod)
	h.runStatefulSet()
	for range int(settle / period) {
		h.pass()
		require.Equal(t, int32(4), *h.set().Spec.Replicas, "the new node has no copies yet")
	}
	assert.Equal(t, []int32{4, 3}, h.sizes(20))
	assert.Equal(t, []string{"data-demo-0", "data-demo-1", "data-demo-2"}, h.claimNames())
}

// Every field that a sync reads has its default, although the object in the cache does not.
func TestUnsetFieldsHaveTheirDefaults(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) {
		c.Spec.Storage.Size = nil
		c.Spec.Autoscale = &v1alpha1.Autoscale{MinNodes: 3, MaxNodes: 8, TargetOpsPerNode: 5000}
	})
	set := h.set()
	assert.Equal(t, "10Gi", set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String())
	resources := set.Spec.Template.Spec.Containers[0].Resources
	assert.Equal(t, "500m", resources.Requests.Cpu().String())
	assert.Equal(t, "1Gi", resources.Limits.Memory().String())
	assert.Equal(t, "300", set.Annotations[v1alpha1.AnnotationStabilization])
	assert.Nil(t, h.cluster().Spec.Resources.CPU, "the object of the user is unchanged")

	grown := map[int32]time.Time{}
	h.rate = 22_000
	for range 20 {
		h.step()
		if size := *h.set().Spec.Replicas; grown[size].IsZero() {
			grown[size] = h.clock.Now()
		}
		if !grown[5].IsZero() {
			h.rate = 33_000
		}
		h.advance(period)
	}
	assert.Equal(t, time.Minute, grown[7].Sub(grown[5]), "the cooldown")
}
