// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"fmt"
	"os"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// managedBy marks the machines of this project.
const managedBy = "nstance"

// identity is what the folder stores about its machine. It is written before QEMU starts.
type identity struct {
	InstanceID  string      `json:"instance_id"`
	ProviderID  string      `json:"provider_id"`
	Association association `json:"association"`
	Annotations annotations `json:"annotations"`
	Origin      origin      `json:"origin"`
	Resources   resources   `json:"resources"`
}

// association is whose machine it is.
type association struct {
	ManagedBy string `json:"managed_by"`
	ClusterID string `json:"cluster_id"`
	Shard     string `json:"shard"`
}

// annotations describe the instance.
type annotations struct {
	Tenant    string    `json:"tenant"`
	Group     string    `json:"group"`
	Kind      string    `json:"kind"`
	Template  string    `json:"template,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// origin is instance.Origin.
type origin struct {
	OnDemand        bool   `json:"on_demand,omitempty"`
	IdempotencyKey  string `json:"idempotency_key,omitempty"`
	InfraConfigHash string `json:"infra_config_hash,omitempty"`
}

// resources are what the machine uses of its subnet.
type resources struct {
	Type   string `json:"type"`
	Subnet string `json:"subnet"`
	// Memory is in bytes.
	Memory int64 `json:"memory"`
}

// newIdentity returns the identity of the machine of a spec.
func newIdentity(shard provider.Shard, spec provider.Spec) identity {
	return identity{
		InstanceID:  spec.ID,
		ProviderID:  fmt.Sprintf("%s:///%s/%s", Name, shard.Zone, spec.ID),
		Association: association{ManagedBy: managedBy, ClusterID: shard.ClusterID, Shard: shard.ID},
		Annotations: annotations{
			Tenant: spec.Group.Tenant, Group: spec.Group.Group, Kind: spec.Kind, Template: spec.Template, CreatedAt: spec.CreatedAt,
		},
		Origin: origin{
			OnDemand: spec.Origin.OnDemand, IdempotencyKey: spec.Origin.IdempotencyKey, InfraConfigHash: spec.Origin.InfraConfigHash,
		},
		Resources: resources{Type: spec.Type.Name, Subnet: spec.Subnet, Memory: spec.Type.Memory.Value()},
	}
}

// machine returns the machine without its state.
func (i identity) machine() cloud.VM {
	return cloud.VM{
		ID:         i.InstanceID,
		ProviderID: i.ProviderID,
		Group:      instance.GroupKey{Tenant: i.Annotations.Tenant, Group: i.Annotations.Group},
		Origin: instance.Origin{
			OnDemand: i.Origin.OnDemand, IdempotencyKey: i.Origin.IdempotencyKey, InfraConfigHash: i.Origin.InfraConfigHash,
		},
		Type: i.Resources.Type,
	}
}

// readIdentity returns false if the folder has none. That of another machine is an error:
// the folder was copied.
func (f folder) readIdentity(shard provider.Shard) (i identity, found bool, err error) {
	if found, err = f.readJSON(identityFile, &i); err != nil || !found {
		return identity{}, false, err
	}
	want := association{ManagedBy: managedBy, ClusterID: shard.ClusterID, Shard: shard.ID}
	if i.InstanceID != f.id || i.Association != want {
		return identity{}, false, fmt.Errorf("%s is of instance %s of shard %s of cluster %s",
			f.file(identityFile), i.InstanceID, i.Association.Shard, i.Association.ClusterID)
	}
	return i, true, nil
}

// launch is the content of the file launchedFile.
type launch struct {
	// BootID is that of the host.
	BootID string `json:"boot_id"`
}

// deletion is the content of the file deletionFile.
type deletion struct {
	RequestedAt time.Time `json:"requested_at"`
}

// bootID identifies the time since the host was started.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
