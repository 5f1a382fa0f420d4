// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Identity identifies the instance of a VM. A provider stores it as JSON with the VM, where
// it has room for it, so that another server can find the VM again.
type Identity struct {
	InstanceID  string      `json:"instance_id"`
	Association Association `json:"association"`
	Annotations Annotations `json:"annotations"`
	Origin      Origin      `json:"origin"`
}

// Association says which shard a VM belongs to.
type Association struct {
	// ManagedBy marks VMs of this project, where other programs could store such a file, too.
	ManagedBy string `json:"managed_by,omitempty"`
	ClusterID string `json:"cluster_id"`
	Shard     string `json:"shard"`
}

// Annotations describe the instance. Only Tenant and Group are read again; users read the
// others.
type Annotations struct {
	Tenant    string    `json:"tenant"`
	Group     string    `json:"group"`
	Kind      string    `json:"kind"`
	Template  string    `json:"template,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// Origin is the stored form of instance.Origin.
type Origin struct {
	OnDemand        bool   `json:"on_demand,omitempty"`
	IdempotencyKey  string `json:"idempotency_key,omitempty"`
	InfraConfigHash string `json:"infra_config_hash,omitempty"`
}

// NewIdentity returns the identity of the VM of a request.
func NewIdentity(shard provider.Shard, spec provider.Spec) Identity {
	return Identity{
		InstanceID:  spec.ID,
		Association: AssociationOf(shard),
		Annotations: Annotations{
			Tenant: spec.Group.Tenant, Group: spec.Group.Group, Kind: spec.Kind, Template: spec.Template, CreatedAt: spec.CreatedAt.UTC(),
		},
		Origin: NewOrigin(spec.Origin),
	}
}

// AssociationOf returns the association of the VMs of a shard.
func AssociationOf(shard provider.Shard) Association {
	return Association{ClusterID: shard.ClusterID, Shard: shard.ID}
}

// NewOrigin returns the stored form of an origin.
func NewOrigin(o instance.Origin) Origin {
	return Origin{OnDemand: o.OnDemand, IdempotencyKey: o.IdempotencyKey, InfraConfigHash: o.InfraConfigHash}
}

// Instance returns the origin of the instance.
func (o Origin) Instance() instance.Origin {
	return instance.Origin{OnDemand: o.OnDemand, IdempotencyKey: o.IdempotencyKey, InfraConfigHash: o.InfraConfigHash}
}

// VM returns the VM with the id, the group and the origin of its instance. The caller sets
// the other fields.
func (i Identity) VM() VM {
	return VM{
		ID:     i.InstanceID,
		Group:  instance.GroupKey{Tenant: i.Annotations.Tenant, Group: i.Annotations.Group},
		Origin: i.Origin.Instance(),
	}
}
