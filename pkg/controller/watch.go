// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
)

// Watched is an informer whose changes a controller acts on.
type Watched struct {
	// What names the objects in an error, as in "pools".
	What     string
	Informer cache.SharedIndexInformer
	// Indexers are added to the informer. Other controllers may have added some,
	// by other names.
	Indexers cache.Indexers
	Handler  cache.ResourceEventHandler
}

// Registrations are the event handlers that a controller has registered with
// informers.
type Registrations []cache.ResourceEventHandlerRegistration

// HasSynced returns a checker per handler. It is done when the handler has received
// every object of the informer's first list.
func (r Registrations) HasSynced() []cache.DoneChecker {
	checkers := make([]cache.DoneChecker, len(r))
	for i, registration := range r {
		checkers[i] = registration.HasSyncedChecker()
	}
	return checkers
}

// Watch adds the indexers and registers the handlers.
func Watch(all ...Watched) (Registrations, error) {
	registrations := make(Registrations, 0, len(all))
	for _, watched := range all {
		if err := watched.Informer.AddIndexers(watched.Indexers); err != nil {
			return nil, fmt.Errorf("index %s: %w", watched.What, err)
		}
		registration, err := watched.Informer.AddEventHandler(watched.Handler)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", watched.What, err)
		}
		registrations = append(registrations, registration)
	}
	return registrations, nil
}

// IndexOnce adds an index to an informer, unless another controller has.
func IndexOnce(informer cache.SharedIndexInformer, name string, index cache.IndexFunc) error {
	if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: index})
}

// Indexed are the objects that an index of an informer has under value. It panics
// when there is no such index.
func Indexed[T any](indexer cache.Indexer, index, value string) []*T {
	found, err := indexer.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	objects := make([]*T, 0, len(found))
	for _, obj := range found {
		if object, ok := obj.(*T); ok {
			objects = append(objects, object)
		}
	}
	return objects
}
