// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"context"
	"errors"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/generated/informers/externalversions"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
)

// NewInformers returns informers of our kinds that are never started: their caches contain
// what Show puts there.
func (a *API) NewInformers() infrastructure.Interface {
	return externalversions.NewSharedInformerFactory(a, 0).Infrastructure().V1beta1()
}

// Show makes the caches of informers equal to what the API server has. Until
// then they are stale, as caches are after a write.
func (a *API) Show(informers infrastructure.Interface) {
	a.t.Helper()
	client := a.InfrastructureV1beta1()
	pools, poolsErr := client.NstanceMachinePools(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	groups, groupsErr := client.NstanceShardGroups(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	machines, machinesErr := client.NstanceMachines(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	clusters, clustersErr := client.NstanceClusters(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	require.NoError(a.t, errors.Join(poolsErr, groupsErr, machinesErr, clustersErr))
	replace(a, informers.NstanceMachinePools().Informer(), pools.Items)
	replace(a, informers.NstanceShardGroups().Informer(), groups.Items)
	replace(a, informers.NstanceMachines().Informer(), machines.Items)
	replace(a, informers.NstanceClusters().Informer(), clusters.Items)
}

func replace[T any](a *API, informer cache.SharedIndexInformer, items []T) {
	a.t.Helper()
	objects := make([]any, len(items))
	for i := range items {
		objects[i] = &items[i]
	}
	require.NoError(a.t, informer.GetIndexer().Replace(objects, a.Version()))
}
