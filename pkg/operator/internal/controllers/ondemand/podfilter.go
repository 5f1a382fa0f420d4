// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
)

// pageSize is how many Pods are in memory at a time while they are listed.
const pageSize = 500

// requestingPods lists and watches the Pods that request a machine. An API server
// cannot select by annotation. A filter after the reflector would be too late: a
// reflector collects a whole list before it passes anything on.
type requestingPods struct {
	client  metadata.ResourceInterface
	cluster string

	mu sync.Mutex
	// passed are the Pods that the reader has. When one of them does not request a
	// machine any more, the reader gets a deletion.
	passed sets.Set[cache.ObjectName]
}

func newRequestingPods(client metadata.ResourceInterface, cluster string) *requestingPods {
	return &requestingPods{client: client, cluster: cluster, passed: sets.New[cache.ObjectName]()}
}

// list returns all Pods that request a machine, read page by page. A list with a
// resource version would be served in one piece and ignore the limit.
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
	// Restarting is better than fetching everything in one piece.
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

// filter returns the event to pass on, if any. For the reader a Pod that does not
// request a machine any more is a deleted one. Bookmarks and errors are passed on.
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

// delivered records an event that the reader has received. One that it has not
// received is sent again by the next watch.
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
