// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const namespace = "default"

// newObject asks shard "a" for 3 instances of the group "workers".
func newObject() *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "workers--a", UID: "uid-workers", Generation: 1,
			Finalizers: []string{v1beta1.FinalizerShardGroup},
		},
		Spec: v1beta1.NstanceShardGroupSpec{
			Group: "workers", Shard: "a", Size: 3,
			Template: "standard", InstanceType: "large", Subnets: []v1beta1.Identifier{"private"}, Vars: map[string]string{"a": "1"},
		},
	}
}

func deleting(object *v1beta1.NstanceShardGroup) *v1beta1.NstanceShardGroup {
	object.DeletionTimestamp = ptr.To(metav1.Now())
	return object
}

// reported is the group as a shard reports it when all of newObject's wishes
// have come true.
func reported() *shard.Group {
	return &shard.Group{
		Key: "workers", Tenant: "default", Template: "standard", Size: 3, InstanceType: "large",
		Subnets: []string{"private"}, Vars: map[string]string{"a": "1"}, ETag: "etag-1",
		ActualSize: 3, ProviderIDs: []string{"i-1", "i-2", "i-3"},
	}
}

func changed(group *shard.Group, change func(*shard.Group)) *shard.Group {
	change(group)
	return group
}

// connected is what a sync sees of a shard that has group, or no group.
func connected(group *shard.Group) observation {
	return observation{configured: true, synced: true, reachable: true, group: group}
}
