// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller/cluster"
	"nstance.dev/operator/pkg/controller/drain"
	"nstance.dev/operator/pkg/controller/importer"
	"nstance.dev/operator/pkg/controller/machine"
	"nstance.dev/operator/pkg/controller/machinepool"
	"nstance.dev/operator/pkg/controller/ondemand"
	"nstance.dev/operator/pkg/controller/poolmachine"
	"nstance.dev/operator/pkg/controller/shardgroup"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/informer"
	"nstance.dev/operator/pkg/shard/pool"
)

// controllers are those that run on the leader.
type controllers struct {
	clusters     *cluster.Controller
	pools        *machinepool.Controller
	shardGroups  *shardgroup.Controller
	imports      *importer.Controller
	machines     *machine.Controller
	poolMachines *poolmachine.Controller
	pods         *ondemand.Controller
	drains       *drain.Controller
}

// runner is what every controller is to the process.
type runner interface{ Run(context.Context) }

func (c *controllers) all() []runner {
	return []runner{c.clusters, c.pools, c.shardGroups, c.imports, c.machines, c.poolMachines, c.pods, c.drains}
}

// newControllers makes the controllers, and returns the registrations of their
// handlers.
func newControllers(options *Options, clients *clients, informers *informers, p *parts, recorder events.EventRecorder) (
	c *controllers, registered []cache.ResourceEventHandlerRegistration, err error,
) {
	clusterConfig, err := newClusterConfig(options, clients)
	if err != nil {
		return nil, nil, err
	}
	c = &controllers{}
	client := clients.nstance.InfrastructureV1beta1()
	var registrations []cache.ResourceEventHandlerRegistration
	c.clusters, registrations, err = cluster.New(clusterConfig, client, clients.capi, clients.kube,
		informers.nstance.NstanceClusters(), informers.clusters, informers.kubeconfig, clock.RealClock{})
	if err != nil {
		return nil, nil, err
	}
	registered = append(registered, registrations...)

	c.pools, registrations, err = machinepool.New(options.Namespace, options.ClusterName(), client, clients.capi,
		informers.nstance.NstanceMachinePools(), informers.nstance.NstanceShardGroups(), informers.nstance.NstanceMachines(),
		informers.machinePools, informers.clusters, informers.nodes,
		p.pool, p.groups, recorder)
	if err != nil {
		return nil, nil, err
	}
	registered = append(registered, registrations...)

	c.drains, registrations, err = drain.New(clients.kube, informers.nodes, informers.volumeAttachments,
		p.pool, p.instances, recorder, clock.RealClock{})
	if err != nil {
		return nil, nil, err
	}
	registered = append(registered, registrations...)

	shardGroups, registration, err := shardgroup.New(options.Namespace, client.NstanceShardGroups(options.Namespace),
		informers.nstance.NstanceShardGroups(), p.pool, p.groups, c.pools, c.drains, recorder, clock.RealClock{})
	if err != nil {
		return nil, nil, err
	}
	c.shardGroups, registered = shardGroups, append(registered, registration)

	c.imports, registrations, err = importer.New(options.Namespace, options.ClusterName(), client,
		informers.nstance.NstanceMachinePools(), informers.nstance.NstanceShardGroups(), informers.machinePools, informers.clusters,
		p.configuration, p.groups, recorder)
	if err != nil {
		return nil, nil, err
	}
	registered = append(registered, registrations...)

	c.machines, registrations, err = machine.New(options.Namespace, options.ClusterName(), client, clients.capi,
		informers.nstance.NstanceMachines(), informers.machines,
		informers.nstance.NstanceMachinePools(), informers.nstance.NstanceShardGroups(), informers.machinePools,
		informers.clusters, informers.nodes,
		p.pool, p.groups, p.instances, c.drains, recorder, clock.RealClock{})
	if err != nil {
		return nil, nil, err
	}
	registered = append(registered, registrations...)

	c.poolMachines, registrations, err = poolmachine.New(options.Namespace, options.ClusterName(), client, clients.capi,
		informers.nstance.NstanceMachinePools(), informers.nstance.NstanceShardGroups(), informers.nstance.NstanceMachines(),
		informers.machines, informers.machinePools, informers.clusters,
		p.groups, recorder, clock.RealClock{})
	if err != nil {
		return nil, nil, err
	}
	registered = append(registered, registrations...)

	c.pods, registrations, err = ondemand.New(options.Namespace, options.ClusterName(), options.OnDemandLimit,
		clients.metadata, client, clients.capi,
		informers.pods, informers.nstance.NstanceMachines(), informers.machines, informers.clusters,
		p.pool, p.groups, recorder)
	if err != nil {
		return nil, nil, err
	}
	return c, append(registered, registrations...), nil
}

func newClusterConfig(options *Options, clients *clients) (cluster.Config, error) {
	endpoint, err := options.endpoint()
	if err != nil {
		return cluster.Config{}, err
	}
	config := cluster.Config{Namespace: options.Namespace, Name: options.ClusterName(), Endpoint: endpoint}
	if options.CAPIEndpoint == "" {
		config.Kubeconfig = &cluster.KubeconfigSource{
			Server:         options.CAPIKubeconfigServer,
			CAData:         clients.ca,
			ServiceAccount: options.CAPIServiceAccount,
		}
	}
	return config, nil
}

// hear tells the controllers what comes from the shards, and from each other.
func (c *controllers) hear(p *parts) {
	shardChanged := func(id string) {
		c.shardGroups.ShardChanged(id)
		c.pools.ShardChanged(id)
		c.imports.ShardChanged(id)
		c.machines.ShardChanged(id)
		c.poolMachines.ShardChanged(id)
		c.pods.ShardChanged(id)
		c.drains.ShardChanged(id)
	}
	p.pool.AddHandler(shardChanged)
	p.configuration.onShards = func() { c.imports.ShardChanged("") }
	p.groups.AddHandler(informer.Handler{
		OnShard: shardChanged,
		OnGroup: func(id, group string) {
			c.shardGroups.GroupChanged(id, group)
			c.pools.GroupChanged(id, group)
			c.imports.GroupChanged(id, group)
			c.machines.GroupChanged(id, group)
			c.poolMachines.GroupChanged(id, group)
			c.pods.GroupChanged(id, group)
		},
		OnError: func(id string, event shard.ErrorEvent) {
			if event.Group == "" {
				p.configuration.shardFailed(id, event.Message)
				return
			}
			c.shardGroups.ShardFailed(id, event.Group, event.Message)
		},
	})
	p.instances.AddHandler(informer.InstanceHandler{
		OnShard: func(id string) {
			c.machines.ShardChanged(id)
			c.drains.ShardChanged(id)
		},
		OnInstance: func(id, instance string) {
			c.machines.InstanceChanged(id, instance)
			c.drains.InstanceChanged(id, instance)
		},
	})
	c.pools.AddPauseHandler(c.shardGroups.Wake)
	c.drains.AddHandler(func(id, group, instance string) {
		c.shardGroups.DrainsChanged(id, group)
		c.machines.InstanceChanged(id, instance)
	})
}

// The interfaces that the controllers declare are met by the shards' own types.
var (
	_ shardgroup.Shards  = (*pool.Pool)(nil)
	_ shardgroup.Groups  = (*informer.Groups)(nil)
	_ machinepool.Shards = (*pool.Pool)(nil)
	_ machinepool.Groups = (*informer.Groups)(nil)
	_ importer.Groups    = (*informer.Groups)(nil)
	_ drain.Shards       = (*pool.Pool)(nil)
	_ drain.Notices      = (*informer.Instances)(nil)
	_ machine.Shards     = (*pool.Pool)(nil)
	_ machine.Groups     = (*informer.Groups)(nil)
	_ machine.Notices    = (*informer.Instances)(nil)
	_ machine.Drains     = (*drain.Controller)(nil)
	_ poolmachine.Groups = (*informer.Groups)(nil)
	_ ondemand.Shards    = (*pool.Pool)(nil)
	_ ondemand.Groups    = (*informer.Groups)(nil)
)
