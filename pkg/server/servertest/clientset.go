// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func init() {
	// A watch of the clientset in memory panics when it has this many events
	// that nobody took yet. Tests that scale far make more than the default.
	watch.DefaultChanSize = 10_000
}

// NewClientset returns a clientset in memory that several shards can share: its
// watches keep to their label selectors, as those of an API server do. Those of
// the fake clientset alone do not.
func NewClientset(objects ...runtime.Object) *fake.Clientset {
	clientset := fake.NewClientset(objects...)
	clientset.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		watching, ok := action.(clienttesting.WatchActionImpl)
		if !ok {
			return true, nil, fmt.Errorf("watching %s: the action is a %T", action.GetResource(), action)
		}
		all, err := clientset.Tracker().Watch(action.GetResource(), action.GetNamespace(), watching.ListOptions)
		if err != nil {
			return true, nil, err
		}
		return true, newSelectiveWatch(all, watching.WatchRestrictions.Labels), nil
	})
	return clientset
}

// selectiveWatch passes on the events of objects that a selector selects.
type selectiveWatch struct {
	all     watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

func newSelectiveWatch(all watch.Interface, selector labels.Selector) *selectiveWatch {
	w := &selectiveWatch{all: all, events: make(chan watch.Event), stopped: make(chan struct{})}
	go func() {
		defer close(w.events)
		for event := range all.ResultChan() {
			object, err := meta.Accessor(event.Object)
			if err == nil && !selector.Matches(labels.Set(object.GetLabels())) {
				continue
			}
			select {
			case w.events <- event:
			case <-w.stopped:
			}
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
