// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import "nstance.dev/operator/pkg/operator/internal/statemetrics"

// newState returns what collects the state of shards, groups and machines.
func (c *components) newState(options *Options, informers *informers) *statemetrics.Collector {
	return statemetrics.New(statemetrics.Sources{
		Shards:      c.configuration.Shards,
		Groups:      c.groups,
		Notices:     c.notices,
		ShardGroups: informers.Nstance.NstanceShardGroups().Lister().NstanceShardGroups(options.Namespace),
		Machines:    informers.Nstance.NstanceMachines().Lister().NstanceMachines(options.Namespace),
	})
}

// watchedInformers returns the informers of everything that there may be many of, by
// resource.
func watchedInformers(i *informers) statemetrics.Informers {
	return statemetrics.Informers{
		"nstancemachinepools": i.Nstance.NstanceMachinePools().Informer(),
		"nstanceshardgroups":  i.Nstance.NstanceShardGroups().Informer(),
		"nstancemachines":     i.Nstance.NstanceMachines().Informer(),
		"clusters":            i.Clusters,
		"machinepools":        i.MachinePools,
		"machines":            i.Machines,
		"nodes":               i.Nodes,
		"pods":                i.Pods,
		"volumeattachments":   i.VolumeAttachments,
	}
}
