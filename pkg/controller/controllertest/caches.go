// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"context"
	"strconv"

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
	pools, err := client.NstanceMachinePools(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	replace(a, informers.NstanceMachinePools().Informer(), pools.Items)
	groups, err := client.NstanceShardGroups(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	replace(a, informers.NstanceShardGroups().Informer(), groups.Items)
	machines, err := client.NstanceMachines(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	replace(a, informers.NstanceMachines().Informer(), machines.Items)
	clusters, err := client.NstanceClusters(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	replace(a, informers.NstanceClusters().Informer(), clusters.Items)
}

func replace[T any](a *API, informer cache.SharedIndexInformer, items []T) {
	a.t.Helper()
	objects := make([]any, len(items))
	for i := range items {
		objects[i] = &items[i]
	}
	if err := informer.GetIndexer().Replace(objects, strconv.Itoa(a.version)); err != nil {
		a.t.Fatal(err)
	}
}
