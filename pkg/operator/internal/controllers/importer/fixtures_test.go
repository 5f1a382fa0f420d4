// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const (
	namespace   = controllertest.Namespace
	clusterName = controllertest.ClusterName
)

// newPool is the pool name of a group on these shards.
func newPool(name string, group v1beta1.Identifier, shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: group, Shards: shards},
	}
}

// up returns a shard that is connected and synced.
func up(groups ...shard.Group) *shardtest.Shard {
	return unknown(true, true, groups...)
}

// unknown returns a shard that is synced or connected, or not.
func unknown(synced, reachable bool, groups ...shard.Group) *shardtest.Shard {
	state := shardtest.NewShard()
	state.Synced, state.Reachable = synced, reachable
	for _, group := range groups {
		state.Groups[group.Key] = group
	}
	return state
}

// A group "main" as a shard reports it.
func static(size int32) shard.Group {
	return shard.Group{
		Key: "main", Size: size, GroupSettings: shard.GroupSettings{Template: "server", InstanceType: "large", Subnets: []string{"private"},
			Vars: map[string]string{"a": "1"}}, Static: true,
	}
}

func dynamic(template string) shard.Group {
	group := static(1)
	group.Static, group.Template = false, template
	return group
}

func deleting(group shard.Group) shard.Group {
	group.Deleting = true
	return group
}

// anotherCluster returns a Cluster of another operator.
func anotherCluster() *clusterv1.Cluster {
	cluster := controllertest.NewCluster()
	cluster.Name = "another"
	return cluster
}
