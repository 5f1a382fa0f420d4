// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// losses are the Pods that ran and were deleted with grace 0: they were not asked
// to end before they were gone.
type losses struct {
	mu   sync.Mutex
	lost []*corev1.Pod
}

// watchLosses watches every Pod until ctx ends.
func watchLosses(ctx context.Context, client kubernetes.Interface) (*losses, error) {
	l := &losses{}
	factory := informers.NewSharedInformerFactory(client, 0)
	handler, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		// Its first grace period tells: in the end everybody's is 0.
		UpdateFunc: func(before, after any) {
			was, ok := before.(*corev1.Pod)
			pod, alsoOK := after.(*corev1.Pod)
			if ok && alsoOK && was.DeletionTimestamp == nil && pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 {
				l.add(pod)
			}
		},
		// What was missed while no watch was open is no *corev1.Pod.
		DeleteFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.DeletionTimestamp == nil {
				l.add(pod)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return nil, errors.New("the Pods could not be listed")
	}
	return l, nil
}

func (l *losses) add(pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodRunning {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, pod)
}

// on returns the names of those that were lost on some Nodes.
func (l *losses) on(nodes ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, pod := range l.lost {
		if slices.Contains(nodes, pod.Spec.NodeName) {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	return names
}
