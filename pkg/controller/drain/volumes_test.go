// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// newVolume is a volume of a claim of the same name, and its attachment to a Node.
func newVolume(name, node string) (*corev1.PersistentVolume, *storagev1.VolumeAttachment) {
	return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name}},
		}, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(name)}},
		}
}

func claiming(pod *corev1.Pod, claim string) *corev1.Pod {
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	return pod
}

func TestAcknowledgementWaitsUntilVolumesAreDetached(t *testing.T) {
	bubble(t, func(t *testing.T) {
		volume, attachment := newVolume("data", "n1")
		elsewhere, attachedElsewhere := newVolume("elsewhere", "n2")
		w := newWorld(t, newNode("n1"), newNode("n2"), volume, attachment, elsewhere, attachedElsewhere, claiming(newPod("db-0", "n1"), "data"))
		w.tell("n1", time.Now().Add(time.Hour))
		after(time.Minute)
		w.want()
		if err := w.StorageV1().VolumeAttachments().Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Second)
		w.want("i-n1")
	})
}

func TestVolumesThatStayAttachedHoldUpTheAcknowledgementForALimitedTime(t *testing.T) {
	for name, c := range map[string]struct {
		deleteIn, before, then time.Duration
	}{
		"two minutes":           {time.Hour, 2*time.Minute + 4*time.Second, 3 * time.Second},
		"as long as there is":   {time.Minute, 59 * time.Second, 2 * time.Second},
		"the shard says no end": {0, 2*time.Minute + 4*time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				volume, attachment := newVolume("data", "n1")
				w := newWorld(t, newNode("n1"), volume, attachment, claiming(newPod("db-0", "n1"), "data"))
				deleteAt := time.Now().Add(c.deleteIn)
				if c.deleteIn == 0 {
					deleteAt = time.Time{}
				}
				w.tell("n1", deleteAt)
				after(c.before)
				w.want()
				after(c.then)
				w.want("i-n1")
			})
		})
	}
}

func TestVolumesOfPodsThatStayDoNotCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		volume, attachment := newVolume("logs", "n1")
		scratch, attachedScratch := newVolume("agent-1-scratch", "n1")
		ephemeral := newAgent("agent-1", "n1")
		ephemeral.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		w := newWorld(t, newNode("n1"), newDaemonSet(), volume, attachment, scratch, attachedScratch,
			claiming(newAgent("agent-0", "n1"), "logs"), ephemeral, newPod("web-0", "n1"))
		w.tell("n1", time.Now().Add(time.Hour))
		after(8 * time.Second)
		w.want("i-n1")
	})
}
