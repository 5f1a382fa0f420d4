// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// crash makes the container of a Pod crash again and again.
func (h *harness) crash(ordinal int32) {
	h.t.Helper()
	pod := h.pod(ordinal)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		RestartCount: 5, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
	delete(h.started, pod.Status.PodIP)
	h.builtIn.Update(podResource, pod)
}

func (h *harness) pod(ordinal int32) *corev1.Pod {
	h.t.Helper()
	object, err := h.kube.Tracker().Get(podResource, "ns", podName(ordinal))
	require.NoError(h.t, err)
	return object.(*corev1.Pod).DeepCopy()
}

// revisions returns the revision of each Pod.
func (h *harness) revisions() []string {
	var revisions []string
	for _, pod := range h.pods() {
		revisions = append(revisions, pod.Labels[appsv1.StatefulSetRevisionLabel])
	}
	return revisions
}

func imaged(image string) func(*v1alpha1.MarekvsCluster) {
	return func(c *v1alpha1.MarekvsCluster) { c.Spec.Image = image }
}

// A new cluster whose image has a typo is repaired by its spec: strimzi/strimzi-kafka-operator#6203.
func TestAWrongImageOfANewClusterIsCorrected(t *testing.T) {
	h := newEmpty(t, imaged("typo"))
	h.broken["typo"] = true
	h.settle()
	assert.Equal(t, []string{"typo", "typo", "typo"}, h.revisions())
	h.change(imaged("right"))
	h.settle()
	h.settle()
	assert.Equal(t, []string{"right", "right", "right"}, h.revisions())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Equal(t, ptr.To[int32](3), h.set().Spec.UpdateStrategy.RollingUpdate.Partition, "it rests")
	var replaced []string
	for _, event := range h.events() {
		if strings.Contains(event, "PodReplaced") {
			replaced = append(replaced, event)
		}
	}
	require.Len(t, replaced, 3)
	assert.Equal(t, "Normal PodReplaced Deleted Pod demo-0, which did not work, so that it gets the present template", replaced[0])
}

// The Pod that crashes gets the new template, whatever its ordinal; the others follow one at a time.
func TestThePodThatCrashesIsRepairedFirst(t *testing.T) {
	h := newHarness(t, nil)
	h.crash(0)
	h.change(imaged("more-memory"))
	for range 4 {
		h.pass()
	}
	assert.Equal(t, []string{"more-memory", "i", "i"}, h.revisions())
	h.settle()
	h.settle()
	assert.Equal(t, []string{"more-memory", "more-memory", "more-memory"}, h.revisions())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionRolledOut))
}

// A template that fails halts at one Pod, and that Pod gets the next template or the former one.
func TestAHaltedUpdateIsRepairedByTheSpec(t *testing.T) {
	for _, image := range []string{"next", "i"} {
		h := newHarness(t, nil)
		h.broken["wrong"] = true
		h.change(imaged("wrong"))
		h.settle()
		assert.Equal(t, []string{"i", "i", "wrong"}, h.revisions())
		assert.Equal(t, "False RolloutHalted", reason(h.cluster().Status, v1alpha1.ConditionRolledOut))
		h.change(sized(5))
		h.settle()
		assert.Equal(t, []string{"i", "i", "wrong", "i", "i"}, h.revisions(), "nodes that are added get what works")
		h.change(imaged(image))
		h.settle()
		h.settle()
		h.settle()
		assert.Equal(t, []string{image, image, image, image, image}, h.revisions())
		assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
	}
}

// A Pod is deleted only as it was read, and an error is published.
func TestAPodThatWorksAgainIsNotReplaced(t *testing.T) {
	h := newHarness(t, nil)
	h.crash(0)
	h.change(imaged("new"))
	h.pass()
	h.step() // the update strategy is written
	require.Equal(t, appsv1.OnDeleteStatefulSetStrategyType, h.set().Spec.UpdateStrategy.Type)
	require.Nil(t, h.set().Spec.UpdateStrategy.RollingUpdate)
	h.show()
	before := h.pod(0)
	works := before.DeepCopy()
	works.Status.Conditions[0].Status = corev1.ConditionTrue
	works.Status.ContainerStatuses = nil
	h.builtIn.Update(podResource, works)
	_, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before.UID, h.pod(0).UID)

	h.builtIn.Update(podResource, before)
	forbidden := apierrors.NewForbidden(podResource.GroupResource(), "demo-0", errors.New("no"))
	h.builtIn.Fail("delete pods demo-0", forbidden)
	h.show()
	_, err = h.syncStale(t.Context())
	require.ErrorContains(t, err, "delete Pod demo-0")
	assert.Equal(t, "False ApplyFailed", reason(h.cluster().Status, v1alpha1.ConditionReconciled))
	assert.Equal(t, before.UID, h.pod(0).UID)
}

// Why an update waits is published, and after the deadline it is blocked.
func TestAnUpdateThatWaitsSaysWhy(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.ProgressDeadlineSeconds = 300 })
	h.under = 7
	h.change(imaged("new"))
	h.settle()
	status := h.cluster().Status
	assert.Equal(t, "False RollingOut", reason(status, v1alpha1.ConditionRolledOut))
	assert.Contains(t, conditionOf(h, v1alpha1.ConditionRolledOut).Message, "7 partitions under-replicated")
	assert.Contains(t, conditionOf(h, v1alpha1.ConditionProgressing).Message, "7 partitions under-replicated")
	h.events()
	for range 30 {
		h.pass()
	}
	status = h.cluster().Status
	assert.Equal(t, v1alpha1.PhaseBlocked, status.Phase)
	assert.Equal(t, "False ProgressDeadlineExceeded", reason(status, v1alpha1.ConditionProgressing))
	assert.Equal(t, "False ProgressDeadlineExceeded", reason(status, v1alpha1.ConditionRolledOut))
	assert.Equal(t, []string{"Warning ProgressDeadlineExceeded no Pod was updated for 5m0s, and the next Pod waits: 7 partitions under-replicated."}, h.events())
	h.under = 0
	h.settle()
	h.settle()
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// A removal that waits for something that never ends is blocked after the deadline.
func TestARemovalThatWaitsForEverIsBlocked(t *testing.T) {
	h := newHarness(t, sized(5))
	h.draining = true
	h.change(sized(3))
	h.settle()
	assert.Equal(t, v1alpha1.PhaseScalingDown, h.cluster().Status.Phase)
	assert.Equal(t, "False AsExpected", reason(h.cluster().Status, v1alpha1.ConditionScaleDownBlocked))
	for range 60 {
		h.pass()
	}
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	assert.Equal(t, "True PodTerminating", reason(h.cluster().Status, v1alpha1.ConditionScaleDownBlocked))
	h.draining = false
	assert.Equal(t, []int32{4, 3}, h.sizes(30))
	assert.Equal(t, "False AsExpected", reason(h.cluster().Status, v1alpha1.ConditionScaleDownBlocked))
}

// A size that the Nodes have no room for can be taken back, whether a user or the load has chosen it.
func TestAGrowthThatCannotStartIsUndone(t *testing.T) {
	h := newHarness(t, sized(5))
	h.full = 5
	h.change(sized(8))
	h.settle()
	require.Len(t, h.pods(), 8)
	assert.Equal(t, ptr.To[int32](5), h.cluster().Status.ReadyNodes)
	h.change(sized(5))
	assert.Equal(t, []int32{8, 7, 6, 5}, h.sizes(20))
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)

	h = newHarness(t, autoscaled)
	h.full = 5
	h.rate = 33_000
	assert.Equal(t, []int32{3, 7}, h.sizes(30))
	h.rate = 6_000
	assert.Equal(t, []int32{7, 6, 5, 4, 3}, h.sizes(100), "the load of the nodes that run is known")
}

// The node of a Pod that has an older volume may have data, although the Pod itself never ran.
func TestAPodWithAnOlderVolumeIsKept(t *testing.T) {
	h := newHarness(t, sized(4))
	h.full = 3
	pod := h.pod(3)
	h.end(pod)
	h.runStatefulSet()
	require.Equal(t, corev1.PodPending, h.pod(3).Status.Phase)
	h.change(sized(3))
	assert.Equal(t, []int32{4}, h.sizes(60))
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
}

// Whether a node has data is known from its Pod and its claim.
func TestEmptyNodes(t *testing.T) {
	now := time.Now()
	claim := func(age time.Duration, phase corev1.PersistentVolumeClaimPhase, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-age))},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
		}
	}
	fresh, old := claim(2*time.Second, corev1.ClaimBound, "v"), claim(time.Hour, corev1.ClaimBound, "v")
	unbound := claim(time.Hour, corev1.ClaimPending, "")
	pending := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: podName(0), CreationTimestamp: metav1.NewTime(now)}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		if change != nil {
			change(pod)
		}
		return pod
	}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		empty bool
	}{
		"never ran, with a new volume":             {pending(nil), fresh, true},
		"never ran, with an old volume":            {pending(nil), old, false},
		"never ran, without a claim":               {pending(nil), nil, true},
		"no Node accepts it, without a volume":     {pending(nil), unbound, true},
		"it has a Node, without a volume":          {pending(func(p *corev1.Pod) { p.Spec.NodeName = "node" }), unbound, false},
		"runs":                                     {pending(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), fresh, false},
		"is being deleted":                         {pending(func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }), fresh, false},
		"its container has restarted":              {pending(func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1}} }), fresh, false},
		"does not exist, with a volume":            {nil, old, false},
		"does not exist, and has no volume":        {nil, unbound, true},
		"does not exist, and the claim is missing": {nil, nil, true},
		"its container has ended": {pending(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		}), fresh, false},
	} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "demo"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](1)}}
		var pods []*corev1.Pod
		claims := map[int32]*corev1.PersistentVolumeClaim{}
		if c.pod != nil {
			pods = append(pods, c.pod)
		}
		if c.claim != nil {
			claims[0] = c.claim
		}
		assert.Equal(t, c.empty, emptyNodes(set, pods, claims)[0], name)
	}
}

// How long a Pod is not ready counts from when it became so, by the clock of the operator: an old Pod that
// is not ready for a moment halts nothing, nor does a clock that is ahead.
func TestAPodThatIsNotReadyForAMoment(t *testing.T) {
	h := newHarness(t, nil)
	h.change(imaged("new"))
	for h.revisions()[2] != "new" {
		h.pass()
	}
	for range 3 {
		pod := h.pod(2)
		pod.CreationTimestamp.Time = h.clock.Now().Add(-time.Hour)
		pod.Status.Conditions[0].Status = corev1.ConditionFalse
		h.builtIn.Update(podResource, pod)
		h.pass()
		assert.NotEqual(t, "False RolloutHalted", reason(h.cluster().Status, v1alpha1.ConditionRolledOut))
		pod = h.pod(2)
		pod.Status.Conditions[0].Status = corev1.ConditionTrue
		h.builtIn.Update(podResource, pod)
		h.show()
		_, err := h.syncStale(t.Context())
		require.NoError(t, err)
		h.advance(20 * time.Minute)
	}
	pod := h.pod(2)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	h.builtIn.Update(podResource, pod)
	for range 62 {
		h.pass()
	}
	assert.Equal(t, "False RolloutHalted", reason(h.cluster().Status, v1alpha1.ConditionRolledOut))
	assert.Contains(t, conditionOf(h, v1alpha1.ConditionRolledOut).Message, "it is not ready after 10m0s")
}

// A time that a clock has written that was ahead counts from when it was read: it stops neither growth
// nor the deletion of claims.
func TestATimeInTheFuture(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { autoscaled(c); reclaiming(c); c.Spec.Nodes = 3 })
	h.builtIn.Add(newClaim(3))
	ahead := h.clock.Now().Add(365 * 24 * time.Hour).Format(time.RFC3339)
	set := h.set()
	set.Annotations[v1alpha1.AnnotationLastScaleUp], set.Annotations[v1alpha1.AnnotationLastScaleDown] = ahead, ahead
	h.builtIn.Update(setResource, set)
	h.settle()
	assert.Len(t, h.claims(), 3)
	h.rate = 22_000
	assert.Equal(t, []int32{3, 5}, h.sizes(30))
}

// A Service that cannot be written does not stop the management of the nodes, and what is known of them is
// published.
func TestAServiceThatCannotBeWrittenStopsNothing(t *testing.T) {
	h := newHarness(t, nil)
	h.builtIn.Remove(serviceResource, "ns", "demo")
	h.builtIn.Fail(applyClient, apierrors.NewInternalError(errors.New("the webhook is down")))
	h.change(sized(5))
	for range 10 {
		h.show()
		_, err := h.syncStale(t.Context())
		require.ErrorContains(t, err, "the webhook is down")
		h.runStatefulSet()
		h.advance(period)
	}
	status := h.cluster().Status
	assert.Equal(t, ptr.To[int32](5), status.ReadyNodes)
	assert.Equal(t, v1alpha1.PhaseHealthy, status.Phase)
	assert.Equal(t, "True AsExpected", reason(status, v1alpha1.ConditionAvailable))
	assert.Equal(t, "False ApplyFailed", reason(status, v1alpha1.ConditionReady))
}

// While a cluster is paused nothing is written but its status, whatever changes.
func TestAPausedClusterIsNotChanged(t *testing.T) {
	h := newHarness(t, reclaiming)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Paused = true })
	h.expect(writeStatus)
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Equal(t, "True Paused", reason(h.cluster().Status, v1alpha1.ConditionPaused))
	h.builtIn.Remove(serviceResource, "ns", "demo")
	h.builtIn.Add(newClaim(7))
	h.crash(0)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes, c.Spec.Image = 6, "new" })
	before := h.set()
	for range 100 {
		h.pass()
	}
	assert.Equal(t, before.Spec, h.set().Spec)
	for _, write := range h.writes() {
		assert.Equal(t, writeStatus, write)
	}
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	assert.Equal(t, "False Paused", reason(h.cluster().Status, v1alpha1.ConditionReady))
	assert.Equal(t, ptr.To[int32](3), h.cluster().Status.ReadyNodes, "what is known is published")

	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Paused = false })
	for range 60 {
		h.pass()
	}
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Len(t, h.pods(), 6)
	assert.Equal(t, "missing", reason(h.cluster().Status, v1alpha1.ConditionPaused))

	created := newEmpty(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.Paused = true })
	created.expect(writeStatus)
	assert.Contains(t, created.cluster().Status.Message, "spec.paused is true")
}
