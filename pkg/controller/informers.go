// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// Watched is an informer, with the handler and the indexes that a controller adds to it.
type Watched struct {
	// What names the objects in an error, such as "pools".
	What     string
	Informer cache.SharedIndexInformer
	// Indexers are added to the informer. Their names must differ from the names that other
	// controllers use.
	Indexers cache.Indexers
	Handler  cache.ResourceEventHandler
}

// Registrations are the registrations of a controller's event handlers.
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

// IndexOnce adds an index to an informer, unless another controller has added it.
func IndexOnce(informer cache.SharedIndexInformer, name string, index cache.IndexFunc) error {
	if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	return informer.AddIndexers(cache.Indexers{name: index})
}

// Indexed returns the objects that an index of an informer has under value. It panics if the
// index does not exist.
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

// OnChange returns a handler that calls changed for every addition (before is nil), update and
// deletion (after is nil), and again with both equal on a resync. A deletion that the watch
// missed arrives with the last known state.
func OnChange[T any](changed func(before, after *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if after, ok := obj.(*T); ok {
				changed(nil, after)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			before, _ := oldObj.(*T)
			if after, ok := newObj.(*T); ok {
				changed(before, after)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if before, ok := obj.(*T); ok {
				changed(before, nil)
			}
		},
	}
}

// GetCached returns the object of a namespaced lister under key, nil if it does not exist.
// kind names the object in an error.
func GetCached[T any](get func(name string) (*T, error), kind string, key cache.ObjectName) (*T, error) {
	object, err := get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s from the cache: %w", kind, key, err)
	}
	return object, nil
}
