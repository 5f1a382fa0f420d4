// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// filteredWatch is a watch with some of the events of another. Unlike the one of
// package watch it reports which events were received, and it does not block when its
// reader has stopped it.
type filteredWatch struct {
	source  watch.Interface
	result  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

// newFilteredWatch passes on what filter returns for each event of source, and calls
// delivered after it was received. It is closed with source, or when it is stopped.
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
