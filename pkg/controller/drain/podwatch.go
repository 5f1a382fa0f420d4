// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
)

// podWatch watches the Pods of one Node for as long as it is drained. The
// operator never watches the Pods of all Nodes.
type podWatch struct {
	node     string
	informer cache.SharedIndexInformer
	synced   func() bool
	stop     context.CancelFunc
}

// watchPods watches the Pods of a Node, and of no other, for a drain. Each change
// of one asks for a sync, and so does the moment when all of them were seen.
func (c *Controller) watchPods(ctx context.Context, key cache.ObjectName, r *record, node string) {
	r.stopWatching()

	informer := coreinformers.NewFilteredPodInformer(c.client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		})
	// An informer that has not been started refuses neither of these.
	if err := informer.SetTransform(podEssentials); err != nil {
		panic(err)
	}
	registration, err := informer.AddEventHandler(controller.OnChange(func(_, _ *corev1.Pod) { c.queue.Add(key) }))
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", node)))
	c.watches.Go(func() { informer.RunWithContext(ctx) })
	c.watches.Go(func() {
		select {
		case <-registration.HasSyncedChecker().Done():
			c.queue.Add(key)
		case <-ctx.Done():
		}
	})

	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = &podWatch{node: node, informer: informer, synced: registration.HasSynced, stop: stop}
}

// stopWatching ends the watch, if there is one, and what is known from it.
func (r *record) stopWatching() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch != nil {
		r.watch.stop()
	}
	r.watch, r.known, r.leaving = nil, nil, nil
}

// beginList notes that a list begins, and returns the Pods that the watch shows.
func (r *record) beginList(now time.Time) []*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listAfter = now.Add(listPeriod)
	if r.watch == nil {
		return nil
	}
	return r.watch.pods()
}

func (w *podWatch) pods() []*corev1.Pod {
	objects := w.informer.GetStore().List()
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// podEssentials keeps of a Pod what a drain reads. Many Nodes may be drained at
// once.
func podEssentials(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			kept.Spec.Volumes = append(kept.Spec.Volumes, volume)
		}
	}
	return kept, nil
}
