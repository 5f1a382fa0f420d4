// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// byUID and byGroup index Pods by UID and by the group in their annotation.
const (
	byUID   = "uid"
	byGroup = "group"
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// unfinished selects Pods that have not finished. When a Pod finishes, the watch reports a
// deletion.
var unfinished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// NewPodInformer returns an informer of the Pods of all namespaces that request a machine of a
// cluster and have not finished. cluster is the name of the NstanceCluster; resync is the
// resync period, 0 for no resync. The cache contains *metav1.PartialObjectMetadata with little
// more than name and UID. Other Pods are dropped on arrival, so that they take no memory.
func NewPodInformer(client metadata.Interface, cluster string, resync time.Duration) cache.SharedIndexInformer {
	requesting := newRequestingPods(client.Resource(podResource), cluster)
	lw := &cache.ListWatch{ListWithContextFunc: requesting.list, WatchFuncWithContext: requesting.watch}
	return cache.NewSharedIndexInformerWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, client), &metav1.PartialObjectMetadata{},
		cache.SharedIndexInformerOptions{
			ResyncPeriod:      resync,
			Indexers:          podIndexers,
			ObjectDescription: "Pods that request a machine",
		})
}

var podIndexers = cache.Indexers{
	byUID: func(obj any) ([]string, error) {
		if pod, ok := obj.(*metav1.PartialObjectMetadata); ok {
			return []string{string(pod.UID)}, nil
		}
		return nil, nil
	},
	byGroup: func(obj any) ([]string, error) {
		if pod, ok := obj.(*metav1.PartialObjectMetadata); ok {
			return []string{pod.Annotations[v1beta1.AnnotationOnDemandGroup]}, nil
		}
		return nil, nil
	},
}

// requestsMachine reports whether a Pod requests a machine of a cluster.
func requestsMachine(pod *metav1.PartialObjectMetadata, cluster string) bool {
	_, requested := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	named, ok := pod.Annotations[v1beta1.AnnotationOnDemandCluster]
	return requested && (!ok || named == cluster)
}

// essentials returns a copy of a Pod with only the fields that the controller reads, so that the
// cache does not keep the others, and with the kind, which events need.
func essentials(pod *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	kept := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp,
		},
	}
	for _, name := range []string{v1beta1.AnnotationOnDemandGroup, v1beta1.AnnotationOnDemandInstanceType, v1beta1.AnnotationOnDemandDrainTimeout} {
		if value, ok := pod.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, cut(value))
		}
	}
	// The controller reads an owner only to reject the Pod, and writes its name into the event.
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && excluded(controller) {
		kept.OwnerReferences = []metav1.OwnerReference{{Kind: controller.Kind, Name: cut(controller.Name), Controller: ptr.To(true)}}
	}
	return kept
}

// maxValue is the maximum length of a value in bytes. A longer value is cut off, and is invalid. The
// annotations of a Pod may have 256 KiB
// (https://github.com/kubernetes/apimachinery/blob/v0.36.0/pkg/api/validation/objectmeta.go#L36), and
// the name of an owner more: the Pods of a user could end the operator.
const maxValue = 256

// cut returns the beginning of a value, in memory of its own. If the value is longer than maxValue,
// its beginning is too.
func cut(value string) string {
	return strings.Clone(value[:min(len(value), maxValue+1)])
}

// pageSize is how many Pods of a list are in memory at a time.
const pageSize = 500

// requestingPods lists and watches the Pods that request a machine. The API server cannot
// select by annotation
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/). A
// filter behind the reflector would be too late: a reflector collects a whole list before it
// passes it on.
type requestingPods struct {
	client  metadata.ResourceInterface
	cluster string

	mu sync.Mutex
	// passed are the Pods that were passed on. If a Pod no longer requests a machine, a
	// deletion is passed on.
	passed sets.Set[cache.ObjectName]
}

func newRequestingPods(client metadata.ResourceInterface, cluster string) *requestingPods {
	return &requestingPods{client: client, cluster: cluster, passed: sets.New[cache.ObjectName]()}
}

// list returns all Pods that request a machine, read page by page. The API server ignores the
// limit of a list with resource version 0
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions), so list
// drops the version.
func (r *requestingPods) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.FieldSelector = unfinished.String()
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	options.Limit = pageSize
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := r.client.List(ctx, options)
		if err != nil {
			return nil, err
		}
		return r.onlyRequesting(page), nil
	})
	// If the continue token expires, the list starts again, because a full list would be in
	// memory at once.
	pages.FullListIfExpired = false
	list, _, err := pages.ListWithAlloc(ctx, options)
	if err != nil {
		return nil, err
	}
	passed := sets.New[cache.ObjectName]()
	err = meta.EachListItem(list, func(object runtime.Object) error {
		pod, err := meta.Accessor(object)
		if err == nil {
			passed.Insert(cache.MetaObjectToName(pod))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r.reset(passed)
	return list, nil
}

func (r *requestingPods) onlyRequesting(page *metav1.PartialObjectMetadataList) *metav1.PartialObjectMetadataList {
	kept := &metav1.PartialObjectMetadataList{TypeMeta: page.TypeMeta, ListMeta: page.ListMeta}
	for i := range page.Items {
		if requestsMachine(&page.Items[i], r.cluster) {
			kept.Items = append(kept.Items, *essentials(&page.Items[i]))
		}
	}
	return kept
}

// watch opens a watch of the Pods that request a machine.
func (r *requestingPods) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = unfinished.String()
	source, err := r.client.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	if ptr.Deref(options.SendInitialEvents, false) {
		// The watch begins with every existing Pod.
		r.reset(sets.New[cache.ObjectName]())
	}
	return newFilteredWatch(source, r.filter, r.delivered), nil
}

// filter returns the event to pass on, if any. If a Pod no longer requests a machine, it
// becomes a deletion. Bookmarks and errors are passed on.
func (r *requestingPods) filter(event watch.Event) (watch.Event, bool) {
	pod, ok := event.Object.(*metav1.PartialObjectMetadata)
	switch {
	case !ok || event.Type == watch.Bookmark || event.Type == watch.Error:
		return event, true
	case event.Type != watch.Deleted && requestsMachine(pod, r.cluster):
		return watch.Event{Type: event.Type, Object: essentials(pod)}, true
	default:
		return watch.Event{Type: watch.Deleted, Object: essentials(pod)}, r.has(pod)
	}
}

// delivered records an event that the reader has received. Other events are sent again by the
// next watch.
func (r *requestingPods) delivered(event watch.Event) {
	pod, ok := event.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch event.Type {
	case watch.Added, watch.Modified:
		r.passed.Insert(cache.MetaObjectToName(pod))
	case watch.Deleted:
		r.passed.Delete(cache.MetaObjectToName(pod))
	}
}

func (r *requestingPods) has(pod *metav1.PartialObjectMetadata) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.passed.Has(cache.MetaObjectToName(pod))
}

func (r *requestingPods) reset(passed sets.Set[cache.ObjectName]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed = passed
}

// filteredWatch is a watch with some of the events of another watch. Unlike watch.Filter it
// reports which events were received, and it does not block after its reader has stopped it.
type filteredWatch struct {
	source  watch.Interface
	result  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

// newFilteredWatch passes on the results of filter for the events of source, and calls
// delivered after each was received. It ends when source ends or when it is stopped.
func newFilteredWatch(source watch.Interface, filter func(watch.Event) (watch.Event, bool), delivered func(watch.Event)) *filteredWatch {
	w := &filteredWatch{source: source, result: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run(filter, delivered)
	return w
}

func (w *filteredWatch) run(filter func(watch.Event) (watch.Event, bool), delivered func(watch.Event)) {
	defer close(w.result)
	for event := range w.source.ResultChan() {
		event, keep := filter(event)
		if !keep {
			continue
		}
		select {
		case w.result <- event:
			delivered(event)
		case <-w.stopped:
			return
		}
	}
}

// ResultChan implements watch.Interface.
func (w *filteredWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *filteredWatch) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.source.Stop()
	})
}
