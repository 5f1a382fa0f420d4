// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import "k8s.io/client-go/tools/cache"

// OnChange is an informer's handler that calls changed for every addition (no
// before), update (both) and deletion (no after), and again with both equal on
// a resync. A deletion that was missed arrives with the last known state.
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
