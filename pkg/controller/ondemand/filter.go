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

// askingPods lists and watches Pods like a client, and lets only those pass that
// ask for a machine. An API server cannot select by annotation. A filter further
// in would come too late: a reflector collects what it lists before it hands
// anything on.
type askingPods struct {
	client metadata.ResourceInterface

	mu sync.Mutex
	// passed are the Pods that the reader knows of. Only for these it has to be
	// told that they do not ask any more.
	passed sets.Set[cache.ObjectName]
}

func newAskingPods(client metadata.ResourceInterface) *askingPods {
	return &askingPods{client: client, passed: sets.New[cache.ObjectName]()}
}

// list returns all Pods that ask, read page by page. A list of a certain resource
// version, or of any, would be served in one piece whatever its limit is.
func (a *askingPods) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.FieldSelector = unfinished.String()
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	options.Limit = pageSize
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := a.client.List(ctx, options)
		if err != nil {
			return nil, err
		}
		return onlyAsking(page), nil
	})
	// Rather begin again than fetch everything in one piece.
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
	a.reset(passed)
	return list, nil
}

func onlyAsking(page *metav1.PartialObjectMetadataList) *metav1.PartialObjectMetadataList {
	kept := &metav1.PartialObjectMetadataList{TypeMeta: page.TypeMeta, ListMeta: page.ListMeta}
	for i := range page.Items {
		if asks(&page.Items[i]) {
			kept.Items = append(kept.Items, *essentials(&page.Items[i]))
		}
	}
	return kept
}

// watch opens a watch of which only the Pods that ask come through.
func (a *askingPods) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = unfinished.String()
	source, err := a.client.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	if ptr.Deref(options.SendInitialEvents, false) {
		// The watch begins with every Pod that there is.
		a.reset(sets.New[cache.ObjectName]())
	}
	return newFilteredWatch(source, a.filter, a.delivered), nil
}

// filter turns an event into the one to pass on, if any. That a Pod ceases to ask
// means for the reader that it is gone. Bookmarks and errors pass.
func (a *askingPods) filter(event watch.Event) (watch.Event, bool) {
	pod, ok := event.Object.(*metav1.PartialObjectMetadata)
	switch {
	case !ok || event.Type == watch.Bookmark || event.Type == watch.Error:
		return event, true
	case event.Type != watch.Deleted && asks(pod):
		return watch.Event{Type: event.Type, Object: essentials(pod)}, true
	default:
		return watch.Event{Type: watch.Deleted, Object: essentials(pod)}, a.knows(pod)
	}
}

// delivered notes an event that the reader has received. One that it was not
// there to receive is sent again by the next watch.
func (a *askingPods) delivered(event watch.Event) {
	pod, ok := event.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch event.Type {
	case watch.Added, watch.Modified:
		a.passed.Insert(cache.MetaObjectToName(pod))
	case watch.Deleted:
		a.passed.Delete(cache.MetaObjectToName(pod))
	}
}

func (a *askingPods) knows(pod *metav1.PartialObjectMetadata) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.passed.Has(cache.MetaObjectToName(pod))
}

func (a *askingPods) reset(passed sets.Set[cache.ObjectName]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passed = passed
}
