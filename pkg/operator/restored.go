// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// errRestored is the error of a process whose caches are newer than the API server.
var errRestored = errors.New("the API server was restored from a backup that is older than the caches of this process")

// cachedKind is a kind whose cache can be compared with the API server.
type cachedKind struct {
	name  string
	cache cache.SharedIndexInformer
	// list reads the newest state.
	list func(context.Context, metav1.ListOptions) (metav1.ListInterface, error)
}

// cachedKinds are the kinds that decide what is created and deleted.
func cachedKinds(clients *clients, informers *informers, namespace string) []cachedKind {
	nstance := clients.nstance.InfrastructureV1beta1()
	return []cachedKind{
		{"NstanceMachinePools", informers.Nstance.NstanceMachinePools().Informer(), lister(nstance.NstanceMachinePools(namespace).List)},
		{"NstanceShardGroups", informers.Nstance.NstanceShardGroups().Informer(), lister(nstance.NstanceShardGroups(namespace).List)},
		{"NstanceMachines", informers.Nstance.NstanceMachines().Informer(), lister(nstance.NstanceMachines(namespace).List)},
		{"MachinePools", informers.MachinePools, lister(clients.capi.MachinePools(namespace).List)},
		{"Machines", informers.Machines, lister(clients.capi.Machines(namespace).List)},
		{"Nodes", informers.Nodes, lister(clients.kube.CoreV1().Nodes().List)},
	}
}

func lister[List metav1.ListInterface](list func(context.Context, metav1.ListOptions) (List, error)) func(context.Context, metav1.ListOptions) (metav1.ListInterface, error) {
	return func(ctx context.Context, options metav1.ListOptions) (metav1.ListInterface, error) {
		return list(ctx, options)
	}
}

// checkNotRestored returns errRestored if a cache has a resource version that the API
// server has not reached. Its watch is silent until then, and a new leader would act on
// a state that no longer exists.
func checkNotRestored(ctx context.Context, kinds []cachedKind) error {
	for _, kind := range kinds {
		cached := kind.cache.LastSyncResourceVersion()
		list, err := kind.list(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.name, err)
		}
		order, err := resourceversion.CompareResourceVersion(cached, list.GetResourceVersion())
		if err != nil {
			return fmt.Errorf("compare the cache of %s with the API server: %w", kind.name, err)
		}
		if order > 0 {
			return fmt.Errorf("%w: %s are cached as of resource version %s, the API server has %s",
				errRestored, kind.name, cached, list.GetResourceVersion())
		}
	}
	return nil
}
