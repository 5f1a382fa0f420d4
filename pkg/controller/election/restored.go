// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package election

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// ErrRestored is the error of a process whose caches are newer than the API server.
var ErrRestored = errors.New("the API server was restored from a backup that is older than the caches of this process")

// CachedKind is a kind whose cache can be compared with the API server.
type CachedKind struct {
	Name  string
	Cache cache.SharedIndexInformer
	// List reads the newest state.
	List func(context.Context, metav1.ListOptions) (metav1.ListInterface, error)
}

// Lister returns the list function of a client as that of a CachedKind.
func Lister[List metav1.ListInterface](list func(context.Context, metav1.ListOptions) (List, error)) func(context.Context, metav1.ListOptions) (metav1.ListInterface, error) {
	return func(ctx context.Context, options metav1.ListOptions) (metav1.ListInterface, error) {
		return list(ctx, options)
	}
}

// CheckNotRestored returns ErrRestored if a cache has a resource version that the API
// server has not reached. Its watch is silent until then, and a new leader would act on
// a state that no longer exists.
func CheckNotRestored(ctx context.Context, kinds []CachedKind) error {
	for _, kind := range kinds {
		cached := kind.Cache.LastSyncResourceVersion()
		list, err := kind.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Name, err)
		}
		order, err := resourceversion.CompareResourceVersion(cached, list.GetResourceVersion())
		if err != nil {
			return fmt.Errorf("compare the cache of %s with the API server: %w", kind.Name, err)
		}
		if order > 0 {
			return fmt.Errorf("%w: %s are cached as of resource version %s, the API server has %s",
				ErrRestored, kind.Name, cached, list.GetResourceVersion())
		}
	}
	return nil
}
