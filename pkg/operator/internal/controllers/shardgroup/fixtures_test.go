// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const namespace = controllertest.Namespace

// newObject wants 3 instances of the group "workers" on shard "a".
func newObject() *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "workers--a", UID: "uid-workers", Generation: 1,
			Finalizers: []string{v1beta1.FinalizerShardGroup},
		},
		Spec: v1beta1.NstanceShardGroupSpec{
			Group: "workers", Shard: "a", Size: 3,
			GroupSettings: v1beta1.GroupSettings{Template: "standard", InstanceType: "large", Subnets: []v1beta1.Identifier{"private"}, Vars: map[string]string{"a": "1"}},
		},
	}
}

// reported returns the group of a shard where newObject is in effect.
func reported() *shard.Group {
	return &shard.Group{
		Key: "workers", Tenant: "default", GroupSettings: shard.GroupSettings{Template: "standard", InstanceType: "large", Subnets: []string{"private"}, Vars: map[string]string{"a": "1"}}, Size: 3, ETag: "etag-1",
		ActualSize: 3, ProviderIDs: []string{"i-1", "i-2", "i-3"},
	}
}

func changed(group *shard.Group, change func(*shard.Group)) *shard.Group {
	change(group)
	return group
}

// connected is the observation of a connected shard that has group, or no group.
func connected(group *shard.Group) observation {
	return observation{configured: true, synced: true, reachable: true, group: group, drainsKnown: true}
}
