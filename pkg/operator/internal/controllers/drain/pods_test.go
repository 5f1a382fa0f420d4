// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The package comment describes these kinds of Pods.
func TestWhichPodsLeave(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		// ready is the Node's condition, True unless it is set.
		ready corev1.ConditionStatus
		// leaves is whether the Pod is evicted, blocks whether the acknowledgement waits
		// for it.
		leaves, blocks bool
	}{
		"of a ReplicaSet":          {change: func(*corev1.Pod) {}, leaves: true, blocks: true},
		"pending":                  {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, leaves: true, blocks: true},
		"without owner":            {change: func(p *corev1.Pod) { p.OwnerReferences = nil }, leaves: true, blocks: true},
		"with emptyDir":            {change: withEmptyDir, leaves: true, blocks: true},
		"without owner, emptyDir":  {change: func(p *corev1.Pod) { p.OwnerReferences = nil; withEmptyDir(p) }, leaves: true, blocks: true},
		"of a DaemonSet":           {change: ofDaemonSet("agent")},
		"of a DaemonSet, emptyDir": {change: func(p *corev1.Pod) { ofDaemonSet("agent")(p); withEmptyDir(p) }},
		"of a deleted DaemonSet":   {change: ofDaemonSet("former"), leaves: true, blocks: true},
		// OpenKruise has one, and kubectl looks for a DaemonSet of Kubernetes.
		"of a DaemonSet of another group": {change: func(p *corev1.Pod) {
			ofDaemonSet("advanced")(p)
			p.OwnerReferences[0].APIVersion = "apps.kruise.io/v1beta1"
		}},
		"mirror":    {change: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"} }},
		"succeeded": {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"failed":    {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		"succeeded, without owner": {change: func(p *corev1.Pod) {
			p.OwnerReferences = nil
			p.Status.Phase = corev1.PodSucceeded
		}},
		"succeeded, of a DaemonSet": {change: func(p *corev1.Pod) {
			ofDaemonSet("agent")(p)
			p.Status.Phase = corev1.PodSucceeded
		}},
		"being deleted":         {change: deletedWith(time.Minute, 0), blocks: true},
		"past its grace period": {change: deletedWith(time.Second, 0), blocks: true},
		"being deleted, on an unreachable Node": {
			change: deletedWith(time.Minute, 0), ready: corev1.ConditionUnknown, blocks: true},
		"being deleted, on an unreachable Node, by an API server whose clock is behind": {
			change: deletedWith(time.Minute, -time.Hour), ready: corev1.ConditionUnknown, blocks: true},
		"past its grace period, on an unreachable Node": {
			change: deletedWith(time.Second, 0), ready: corev1.ConditionUnknown},
		"past its grace period, on an unreachable Node, by an API server whose clock is ahead": {
			change: deletedWith(time.Second, time.Hour), ready: corev1.ConditionUnknown},
		"past its grace period, on a Node that is not ready": {
			change: deletedWith(time.Second, 0), ready: corev1.ConditionFalse, blocks: true},
		"running, on an unreachable Node": {change: func(*corev1.Pod) {}, ready: corev1.ConditionUnknown, leaves: true, blocks: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				node := newNode("n1")
				if c.ready != "" {
					node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
				}
				pod := newPod("web-0", "n1")
				pod.Labels = nil
				pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
				c.change(pod)
				h := newHarness(t, node, newDaemonSet(), pod)
				h.announce("n1", time.Now().Add(30*time.Second))
				advance(10 * time.Second)
				if got := len(h.evictions["web-0"]) > 0; got != c.leaves {
					t.Errorf("evicted: %t, want %t", got, c.leaves)
				}
				if got := len(h.shards.Acknowledged()) == 0; got != c.blocks {
					t.Errorf("blocks the acknowledgement: %t, want %t", got, c.blocks)
				}
			})
		})
	}
}

// A kubelet that hangs does not terminate its Pods.
func TestPodThatDoesNotTerminateIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("web-0", "n1")
		deletedWith(20*time.Second, 0)(pod)
		since := time.Now()
		h := newHarness(t, newNode("n1"), pod)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(20*time.Second + blockedAfter - time.Second)
		if blocked, message, _ := h.controller.OfInstance("a", "i-n1"); blocked {
			t.Errorf("blocked too early: %s", message)
		}
		advance(2 * time.Second)
		const want = "Node n1: Pod default/web-0 is being deleted and does not terminate"
		_, _, list := h.controller.Summary("a", "workers")
		assert.Equal(t, []v1beta1.BlockedDrain{{
			Instance: "i-n1", Node: "n1", Reason: v1beta1.ReasonPodNotTerminating, Since: metav1.NewTime(since.Add(20 * time.Second)).Rfc3339Copy(), Message: want,
			Pod: &v1beta1.BlockingPod{Namespace: "default", Name: "web-0"},
		}}, list)
		assert.Equal(t, []string{"Warning DrainBlocked " + want + ": its grace period is over"}, h.warnings(), "the events")
		h.expectAcknowledged()
		h.deletePod()
		advance(time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func withEmptyDir(pod *corev1.Pod) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func ofDaemonSet(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "DaemonSet", name }
}

// deletedWith deletes a Pod with a grace period. The clock of the API server is ahead.
func deletedWith(gracePeriod, ahead time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(gracePeriod + ahead)))
		pod.DeletionGracePeriodSeconds = ptr.To(int64(gracePeriod.Seconds()))
		pod.Finalizers = []string{"example.com/keep"}
	}
}

// A Node that registers again is another Node: Pods that were bound to it before it was cordoned
// leave, and those that come back stay.
func TestPodsOfANodeThatRegistersAgainLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tolerant := func(name string) *corev1.Pod {
			pod := newPod(name, "n1")
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			return pod
		}
		h := newHarness(t, newNode("n1"), tolerant("web-0"))
		h.setShardError(errUnreachable)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(4 * time.Second)
		h.deleteNode("n1")
		h.addPod(tolerant("web-1"))
		again := newNode("n1")
		again.UID = "node-n1-again"
		start := time.Now()
		h.addNode(again)
		advance(10 * time.Second)
		assert.NotEqual(t, time.Duration(-1), h.evictedAt("web-1", start), "web-1 was there before the cordon")
		stays := tolerant("web-2")
		stays.Labels = nil
		h.addPod(stays)
		h.setShardError(nil)
		advance(time.Minute)
		h.expectAcknowledged("i-n1")
		assert.Equal(t, 2, h.count("create pods/eviction"), "evictions")
	})
}
