// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// newVolume returns a volume of a claim of the same name, and its attachment to a Node.
func newVolume(name, node string) (*corev1.PersistentVolume, *storagev1.VolumeAttachment) {
	return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name}},
		}, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(name)}},
		}
}

func withClaim(pod *corev1.Pod, claim string) *corev1.Pod {
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	return pod
}

func TestAcknowledgementWaitsUntilVolumesAreDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume, attachment := newVolume("data", "n1")
		elsewhere, attachedElsewhere := newVolume("elsewhere", "n2")
		h := newHarness(t, newNode("n1"), newNode("n2"), volume, attachment, elsewhere, attachedElsewhere, withClaim(newPod("db-0", "n1"), "data"))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Minute)
		h.expectAcknowledged()
		require.NoError(t, h.StorageV1().VolumeAttachments().Delete(t.Context(), "data", metav1.DeleteOptions{}))
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestAttachedVolumesBlockTheAcknowledgementForALimitedTime(t *testing.T) {
	for name, c := range map[string]struct {
		deleteIn, blockedFor, then time.Duration
		acknowledged               []string
	}{
		"two minutes":        {time.Hour, 2*time.Minute + 4*time.Second, 3 * time.Second, []string{"i-n1"}},
		"until the deadline": {time.Minute, 59 * time.Second, 2 * time.Minute, nil},
		"no deadline":        {0, 2*time.Minute + 4*time.Second, 3 * time.Second, []string{"i-n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				volume, attachment := newVolume("data", "n1")
				h := newHarness(t, newNode("n1"), volume, attachment, withClaim(newPod("db-0", "n1"), "data"))
				deleteAt := time.Now().Add(c.deleteIn)
				if c.deleteIn == 0 {
					deleteAt = time.Time{}
				}
				h.announce("n1", deleteAt)
				advance(c.blockedFor)
				h.expectAcknowledged()
				advance(c.then)
				h.expectAcknowledged(c.acknowledged...)
			})
		})
	}
}

func TestVolumesOfPodsThatStayDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume, attachment := newVolume("logs", "n1")
		scratch, attachedScratch := newVolume("agent-1-scratch", "n1")
		ephemeral := newDaemonSetPod("agent-1", "n1")
		ephemeral.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		h := newHarness(t, newNode("n1"), newDaemonSet(), volume, attachment, scratch, attachedScratch,
			withClaim(newDaemonSetPod("agent-0", "n1"), "logs"), ephemeral, newPod("web-0", "n1"))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(8 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}
