// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import "nstance.dev/operator/pkg/controller/election"

// cachedKinds are the kinds that decide what is created and deleted, but for those of a
// workload cluster.
func cachedKinds(clients *clients, informers *informers, namespace string) []election.CachedKind {
	nstance := clients.nstance.InfrastructureV1beta1()
	kinds := []election.CachedKind{
		{Name: "NstanceMachinePools", Cache: informers.Nstance.NstanceMachinePools().Informer(), List: election.Lister(nstance.NstanceMachinePools(namespace).List)},
		{Name: "NstanceShardGroups", Cache: informers.Nstance.NstanceShardGroups().Informer(), List: election.Lister(nstance.NstanceShardGroups(namespace).List)},
		{Name: "NstanceMachines", Cache: informers.Nstance.NstanceMachines().Informer(), List: election.Lister(nstance.NstanceMachines(namespace).List)},
		{Name: "MachinePools", Cache: informers.MachinePools, List: election.Lister(clients.capi.MachinePools(namespace).List)},
		{Name: "Machines", Cache: informers.Machines, List: election.Lister(clients.capi.Machines(namespace).List)},
	}
	if clients.workloadServer == "" {
		kinds = append(kinds, cachedNodes(clients, informers))
	}
	return kinds
}

func cachedNodes(clients *clients, informers *informers) election.CachedKind {
	return election.CachedKind{Name: "Nodes", Cache: informers.Nodes, List: election.Lister(clients.workload.Kube.CoreV1().Nodes().List)}
}
