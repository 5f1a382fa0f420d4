// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
)

// forcedDeletions are the Pods that ran and were deleted with grace period 0:
// without being terminated first.
type forcedDeletions struct {
	mu   sync.Mutex
	pods []*corev1.Pod
}

// watchForcedDeletions watches every Pod until ctx is done.
func watchForcedDeletions(ctx context.Context, client kubernetes.Interface) (*forcedDeletions, error) {
	d := &forcedDeletions{}
	return d, testcluster.Follow(ctx, coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, nil), cache.ResourceEventHandlerFuncs{
		// The first grace period counts: the last one is 0 for every Pod.
		UpdateFunc: func(before, after any) {
			was, ok := before.(*corev1.Pod)
			pod, alsoOK := after.(*corev1.Pod)
			if ok && alsoOK && was.DeletionTimestamp == nil && pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 {
				d.add(pod)
			}
		},
		// A deletion that was missed while no watch was open is no *corev1.Pod.
		DeleteFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.DeletionTimestamp == nil {
				d.add(pod)
			}
		},
	})
}

func (d *forcedDeletions) add(pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodRunning {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods = append(d.pods, pod)
}

// expectNone fails the test for the forced deletions on some Nodes.
func (d *forcedDeletions) expectNone(t testing.TB, nodes ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, pod := range d.pods {
		if slices.Contains(nodes, pod.Spec.NodeName) {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	assert.Empty(t, names, "Pods were deleted without being terminated")
}
