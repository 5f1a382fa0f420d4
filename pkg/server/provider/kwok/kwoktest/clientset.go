// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package kwoktest is a cluster in memory for the kwok provider.
package kwoktest

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

func init() {
	// A watch of the fake clientset panics when it has this many unread events.
	// Tests of many instances have more than the default.
	watch.DefaultChanSize = 10_000
	// Only the first of apimachinery's error handlers, which logs. The other one slows
	// errors down by the time since the last one, which bubbles of synctest do not share.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
}

// NewClientset returns a clientset in memory that several shards can share. Unlike the fake
// clientset of client-go, and like an API server, its watches respect label selectors, even
// if the labels of an object change, and include deletions since the preceding list.
func NewClientset(objects ...runtime.Object) *fake.Clientset {
	clientset := fake.NewClientset(objects...)
	listed := &lists{objects: map[listKey][]runtime.Object{}}
	clientset.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		listing, ok := action.(clienttesting.ListActionImpl)
		if !ok {
			return true, nil, fmt.Errorf("listing %s: the action is a %T", action.GetResource(), action)
		}
		list, err := clientset.Tracker().List(action.GetResource(), listing.GetKind(), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		return true, list, listed.remember(listing, list)
	})
	clientset.PrependReactor("delete", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion, ok := action.(clienttesting.DeleteAction)
		if !ok {
			return true, nil, fmt.Errorf("deleting %s: the action is a %T", action.GetResource(), action)
		}
		// An API server gives a deletion a version of its own. The fake clientset does not, so a
		// list after a deletion would have the version of a list before it.
		tracker := clientset.Tracker()
		object, err := tracker.Get(action.GetResource(), action.GetNamespace(), deletion.GetName())
		if err == nil {
			err = tracker.Update(action.GetResource(), object, action.GetNamespace())
		}
		return err != nil, nil, err
	})
	clientset.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		watching, ok := action.(clienttesting.WatchActionImpl)
		if !ok {
			return true, nil, fmt.Errorf("watching %s: the action is a %T", action.GetResource(), action)
		}
		all, err := clientset.Tracker().Watch(action.GetResource(), action.GetNamespace(), watching.ListOptions)
		if err != nil {
			return true, nil, err
		}
		// The watch includes deletions from now on.
		missed, err := listed.deletedSince(watching, clientset.Tracker())
		if err != nil {
			return true, nil, err
		}
		return true, newSelectiveWatch(listed.of(watching), missed, all, watching.WatchRestrictions.Labels), nil
	})
	return clientset
}

// lists has the results of lists, from which a watch derives deletions since then.
type lists struct {
	mu      sync.Mutex
	objects map[listKey][]runtime.Object
}

type listKey struct {
	resource                   schema.GroupVersionResource
	namespace, resourceVersion string
}

func (l *lists) remember(action clienttesting.ListActionImpl, list runtime.Object) error {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	key := listKey{action.GetResource(), action.GetNamespace(), accessor.GetResourceVersion()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.objects[key] = objects
	return nil
}

// of returns the objects of the list that a watch continues.
func (l *lists) of(action clienttesting.WatchActionImpl) []runtime.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.objects[listKey{action.GetResource(), action.GetNamespace(), action.ListOptions.ResourceVersion}]
}

// deletedSince returns an event for each object of the list that was deleted.
func (l *lists) deletedSince(action clienttesting.WatchActionImpl, tracker clienttesting.ObjectTracker) ([]watch.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var events []watch.Event
	for _, object := range l.objects[listKey{action.GetResource(), action.GetNamespace(), action.ListOptions.ResourceVersion}] {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		_, err = tracker.Get(action.GetResource(), accessor.GetNamespace(), accessor.GetName())
		switch {
		case apierrors.IsNotFound(err):
			events = append(events, watch.Event{Type: watch.Deleted, Object: object})
		case err != nil:
			return nil, err
		}
	}
	return events, nil
}

// selectiveWatch passes on the events of objects that a selector selects.
type selectiveWatch struct {
	all     watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

// newSelectiveWatch continues a list, and begins with the events in missed.
func newSelectiveWatch(list []runtime.Object, missed []watch.Event, all watch.Interface, selector labels.Selector) *selectiveWatch {
	w := &selectiveWatch{all: all, events: make(chan watch.Event), stopped: make(chan struct{})}
	selects := func(object metav1.Object) bool { return selector.Matches(labels.Set(object.GetLabels())) }
	known := map[string]bool{}
	for _, listed := range list {
		if object, err := meta.Accessor(listed); err == nil && selects(object) {
			known[object.GetNamespace()+"/"+object.GetName()] = true
		}
	}
	pass := func(event watch.Event) {
		if object, err := meta.Accessor(event.Object); err == nil {
			name := object.GetNamespace() + "/" + object.GetName()
			before, after := known[name], event.Type != watch.Deleted && selects(object)
			switch {
			case event.Type == watch.Deleted && !before && !selects(object), !before && !after && event.Type != watch.Deleted:
				return
			case before && !after:
				// An object that is not selected any more is deleted for the watch.
				event.Type = watch.Deleted
			case !before && after:
				event.Type = watch.Added
			}
			known[name] = after
		}
		select {
		case w.events <- event:
		case <-w.stopped:
		}
	}
	go func() {
		defer close(w.events)
		for _, event := range missed {
			pass(event)
		}
		for event := range all.ResultChan() {
			pass(event)
		}
	}()
	return w
}

// ResultChan is closed after Stop.
func (w *selectiveWatch) ResultChan() <-chan watch.Event {
	return w.events
}

// Stop may be called again.
func (w *selectiveWatch) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.all.Stop()
	})
}

// Name is the name of the provider in the configuration.
const Name = kwok.Name

// Providers returns a registry of the kwok provider. Its Nodes are in the cluster
// of client, and the kubeconfig is not read. Without a client there is no provider.
func Providers(client kubernetes.Interface) provider.Registry {
	return provider.Registry{Name: func(o *jsonc.Object) provider.Options {
		options := kwok.ReadOptions(o)
		if client != nil {
			options.(*kwok.Options).Client = Nodes(client)
		}
		return options
	}}
}

// Nodes returns the calls for the Nodes of a clientset in memory.
func Nodes(client kubernetes.Interface) kwok.NodeClient { return nodes{client.CoreV1().Nodes()} }

type nodes struct{ kwok.NodeClient }

// IsWatchListSemanticsUnSupported makes informers list: the watches of a clientset in memory
// do not begin with a list.
func (nodes) IsWatchListSemanticsUnSupported() bool { return true }
