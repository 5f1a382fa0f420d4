// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Status reads what "kubectl nstance status" shows. An empty name means all pools. The error
// is a NotFoundError if there is no such pool.
func (g *Gatherer) Status(ctx context.Context, name string) (*objects.Snapshot, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	if err := g.readPools(ctx, s, name); err != nil {
		return nil, err
	}
	groups := ""
	if name != "" && len(s.Pools.Items) == 1 {
		groups = v1beta1.LabelGroup + "=" + string(s.Pools.Items[0].Spec.Group)
	}
	var reads sync.WaitGroup
	reads.Go(func() { s.MachinePools = g.machinePools(ctx) })
	reads.Go(func() { s.ShardGroups = g.shardGroups(ctx, groups) })
	reads.Go(func() { s.NstanceMachines = g.nstanceMachinesOf(ctx, groups) })
	reads.Go(func() { s.Machines = g.machinesOf(ctx, name) })
	reads.Go(func() { g.readNodes(ctx, s, g.allNodes) })
	reads.Wait()
	if name != "" {
		s.NstanceMachines.Items = slices.DeleteFunc(s.NstanceMachines.Items, func(machine v1beta1.NstanceMachine) bool {
			return !slices.ContainsFunc(s.Pools.Items, func(pool v1beta1.NstanceMachinePool) bool {
				return pool.Namespace == machine.Namespace && pool.Spec.Group == machine.Spec.GroupRef.Name
			})
		})
	}
	keepOwnNodes(s)
	g.readDrains(ctx, s)
	return s, nil
}

// readPools reads one pool, or with an empty name all.
func (g *Gatherer) readPools(ctx context.Context, s *objects.Snapshot, name string) error {
	if name != "" && g.namespace != "" {
		pool, err := g.nstance.InfrastructureV1beta1().NstanceMachinePools(g.namespace).Get(ctx, name, metav1.GetOptions{})
		s.Pools = one("nstancemachinepools", pool, err)
		if s.Pools.Unknown != "" {
			return errors.New(s.Pools.Unknown)
		}
		if len(s.Pools.Items) == 1 {
			return nil
		}
	}
	s.Pools = g.pools(ctx)
	if s.Pools.Unknown != "" {
		// Without pools there is nothing to show.
		return errors.New(s.Pools.Unknown)
	}
	if name == "" {
		return nil
	}
	existing := []string{}
	for _, pool := range s.Pools.Items {
		existing = append(existing, pool.Name)
	}
	s.Pools.Items = slices.DeleteFunc(s.Pools.Items, func(pool v1beta1.NstanceMachinePool) bool { return pool.Name != name })
	if len(s.Pools.Items) == 0 {
		return &NotFoundError{Kind: v1beta1.PoolKind, Namespace: g.namespace, Name: name, Existing: existing}
	}
	return nil
}

// nstanceMachinesOf reads the NstanceMachines of the pools that a selector selects, and those
// of no pool, which do not have the label.
func (g *Gatherer) nstanceMachinesOf(ctx context.Context, selector string) objects.Read[v1beta1.NstanceMachine] {
	if selector == "" {
		return g.nstanceMachines(ctx, "")
	}
	return merge(g.nstanceMachines(ctx, selector), g.nstanceMachines(ctx, "!"+v1beta1.LabelGroup))
}

// machinesOf reads the Machines of one pool and those of no pool, or all if the name is
// empty.
func (g *Gatherer) machinesOf(ctx context.Context, pool string) objects.Read[clusterv1.Machine] {
	if pool == "" {
		return g.machines(ctx, "")
	}
	const label = clusterv1.MachinePoolNameLabel
	return merge(g.machines(ctx, label+"="+capi.LabelValue(pool)), g.machines(ctx, "!"+label))
}

// merge returns the items of two reads.
func merge[T any](a, b objects.Read[T]) objects.Read[T] {
	for _, read := range []objects.Read[T]{a, b} {
		if read.Unknown != "" {
			return objects.Unread[T](read.Unknown)
		}
	}
	return objects.Read[T]{Items: slices.Concat(a.Items, b.Items)}
}

// keepOwnNodes removes the Nodes of no instance in the snapshot.
func keepOwnNodes(s *objects.Snapshot) {
	own := map[string][]string{}
	add := func(id string) {
		if key := providerid.Key(id); key != "" {
			own[key] = append(own[key], id)
		}
	}
	for i := range s.ShardGroups.Items {
		for _, id := range s.ShardGroups.Items[i].Status.ProviderIDs {
			add(id)
		}
	}
	for i := range s.NstanceMachines.Items {
		add(objects.ProviderIDOf(&s.NstanceMachines.Items[i]))
	}
	s.Nodes.Items = slices.DeleteFunc(s.Nodes.Items, func(node corev1.Node) bool {
		return !slices.ContainsFunc(own[providerid.Key(node.Spec.ProviderID)], func(id string) bool {
			return providerid.Match(id, node.Spec.ProviderID)
		})
	})
}
