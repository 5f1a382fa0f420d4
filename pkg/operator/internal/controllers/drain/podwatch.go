// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
)

// podWatch watches the Pods of one Node while it is drained. The operator never
// watches the Pods of all Nodes.
type podWatch struct {
	node     string
	informer cache.SharedIndexInformer
	synced   func() bool
	stop     context.CancelFunc

	mu sync.Mutex
	// err is the last error of the watch, nil for none.
	err error
}

// failed returns the last error of the watch, nil for none. Each watch ends with an error
// at some time, so it has a meaning only until the watch is complete for the first time.
func (w *podWatch) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *podWatch) setFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// startPodWatch watches the Pods of a Node for a drain, which is enqueued on each
// change and when the watch is complete.
func (c *Controller) startPodWatch(ctx context.Context, key Key, s *state, node string) {
	s.stopPodWatch()

	informer := coreinformers.NewFilteredPodInformer(c.client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		})
	// Neither of these fails before an informer is started.
	if err := informer.SetTransform(trimPod); err != nil {
		panic(err)
	}
	watch := &podWatch{node: node, informer: informer}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		watch.setFailed(fmt.Errorf("watch the Pods of Node %s: %w", node, err))
		c.queue.Add(key)
	})
	if err != nil {
		panic(err)
	}
	registration, err := informer.AddEventHandler(controller.OnChange(func(_, _ *corev1.Pod) { c.queue.Add(key) }))
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", node)))
	c.podWatches.Go(func() { informer.RunWithContext(ctx) })
	c.podWatches.Go(func() {
		select {
		case <-registration.HasSyncedChecker().Done():
			c.queue.Add(key)
		case <-ctx.Done():
		}
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	watch.synced, watch.stop = registration.HasSynced, stop
	s.watch = watch
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

// trimPod is the transform of a watch: it keeps the fields that drains read, because
// many Nodes may be drained at the same time.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds, OwnerReferences: pod.OwnerReferences,
		},
		Spec:   corev1.PodSpec{TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			trimmed.Spec.Volumes = append(trimmed.Spec.Volumes, volume)
		}
	}
	return trimmed, nil
}
