// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// What the package comment says of the kinds of Pods.
func TestWhichPodsLeave(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		// ready is the Node's condition, True unless it is set.
		ready corev1.ConditionStatus
		// leaves: it is evicted. holds: the acknowledgement waits for it.
		leaves, holds bool
	}{
		"of a ReplicaSet":           {change: func(*corev1.Pod) {}, leaves: true, holds: true},
		"pending":                   {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, leaves: true, holds: true},
		"ownerless":                 {change: func(p *corev1.Pod) { p.OwnerReferences = nil }, leaves: true, holds: true},
		"with emptyDir":             {change: withEmptyDir, leaves: true, holds: true},
		"ownerless with emptyDir":   {change: func(p *corev1.Pod) { p.OwnerReferences = nil; withEmptyDir(p) }, leaves: true, holds: true},
		"of a DaemonSet":            {change: ofDaemonSet("agent")},
		"of a DaemonSet, emptyDir":  {change: func(p *corev1.Pod) { ofDaemonSet("agent")(p); withEmptyDir(p) }},
		"of a DaemonSet that is no": {change: ofDaemonSet("former"), leaves: true, holds: true},
		"mirror":                    {change: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"} }},
		"succeeded":                 {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"failed":                    {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		"succeeded, ownerless": {change: func(p *corev1.Pod) {
			p.OwnerReferences = nil
			p.Status.Phase = corev1.PodSucceeded
		}},
		"succeeded, of a DaemonSet": {change: func(p *corev1.Pod) {
			ofDaemonSet("agent")(p)
			p.Status.Phase = corev1.PodSucceeded
		}},
		"being deleted":                         {change: deletedFor(-time.Minute), holds: true},
		"past its grace":                        {change: deletedFor(time.Minute), holds: true},
		"being deleted, on an unreachable Node": {change: deletedFor(-time.Minute), ready: corev1.ConditionUnknown, holds: true},
		"past its grace, on an unreachable Node": {
			change: deletedFor(time.Minute), ready: corev1.ConditionUnknown},
		"past its grace, on a Node that is not ready": {
			change: deletedFor(time.Minute), ready: corev1.ConditionFalse, holds: true},
		"running, on an unreachable Node": {change: func(*corev1.Pod) {}, ready: corev1.ConditionUnknown, leaves: true, holds: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				node := newNode("n1")
				if c.ready != "" {
					node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
				}
				pod := newPod("web-0", "n1")
				pod.Labels = nil
				pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
				c.change(pod)
				w := newWorld(t, node, newDaemonSet(), pod)
				w.tell("n1", time.Now().Add(30*time.Second))
				after(10 * time.Second)
				if got := len(w.evictions["web-0"]) > 0; got != c.leaves {
					t.Errorf("evicted: %t, want %t", got, c.leaves)
				}
				if got := len(w.acknowledged()) == 0; got != c.holds {
					t.Errorf("holds up the acknowledgement: %t, want %t", got, c.holds)
				}
			})
		})
	}
}

func withEmptyDir(pod *corev1.Pod) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

func ofDaemonSet(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "DaemonSet", name }
}

// deletedFor is a Pod whose grace period has been over for some time.
func deletedFor(ago time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(-ago)))
		pod.Finalizers = []string{"example.com/keep"}
	}
}
