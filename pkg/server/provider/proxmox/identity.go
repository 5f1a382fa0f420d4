// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// identity is what the notes of a virtual machine have about its instance. They are set by
// the call that clones it, together with its name, and are not changed.
type identity struct {
	InstanceID string `json:"instance_id"`
	// VMID is that of the virtual machine. A copy of it that a user makes has another one.
	VMID        int         `json:"vmid"`
	Association association `json:"association"`
	Annotations annotations `json:"annotations"`
	Origin      origin      `json:"origin"`
	Resources   resources   `json:"resources"`
}

// association is whose virtual machine it is. The tags have the same once it is configured,
// so that users can search for them.
type association struct {
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

// resources are what the virtual machine uses.
type resources struct {
	Type   string `json:"type"`
	Subnet string `json:"subnet"`
	// Userdata is the volume of the disk with the userdata.
	Userdata string `json:"userdata"`
}

// notesTitle is the first line of the notes, for people.
const notesTitle = "This virtual machine is managed by nstance. Do not change these notes."

// newIdentity returns the identity of the virtual machine of a spec.
func newIdentity(shard provider.Shard, spec provider.Spec, vmid int, userdata string) identity {
	return identity{
		InstanceID:  spec.ID,
		VMID:        vmid,
		Association: associationOf(shard),
		Annotations: annotations{
			Tenant: spec.Group.Tenant, Group: spec.Group.Group, Kind: spec.Kind, Template: spec.Template, CreatedAt: spec.CreatedAt.UTC(),
		},
		Origin: origin{
			OnDemand: spec.Origin.OnDemand, IdempotencyKey: spec.Origin.IdempotencyKey, InfraConfigHash: spec.Origin.InfraConfigHash,
		},
		Resources: resources{Type: spec.Type.Name, Subnet: spec.Subnet, Userdata: userdata},
	}
}

func associationOf(shard provider.Shard) association {
	return association{ClusterID: shard.ClusterID, Shard: shard.ID}
}

// notes returns the text for the notes.
func (i identity) notes() (string, error) {
	data, err := json.MarshalIndent(i, "", "  ")
	return notesTitle + "\n\n```json\n" + string(data) + "\n```\n", err
}

// parseNotes returns false if notes have no identity.
func parseNotes(notes string) (i identity, found bool) {
	begin, end := strings.Index(notes, "{"), strings.LastIndex(notes, "}")
	if !strings.HasPrefix(notes, notesTitle) || begin < 0 || end < begin {
		return identity{}, false
	}
	err := json.Unmarshal([]byte(notes[begin:end+1]), &i)
	return i, err == nil && i.InstanceID != "" && i.VMID != 0
}

// machine returns the machine without its state.
func (i identity) machine(shard provider.Shard) cloud.VM {
	return cloud.VM{
		ID:         i.InstanceID,
		ProviderID: fmt.Sprintf("%s:///%s/%s", Name, shard.Zone, i.InstanceID),
		Group:      instance.GroupKey{Tenant: i.Annotations.Tenant, Group: i.Annotations.Group},
		Origin: instance.Origin{
			OnDemand: i.Origin.OnDemand, IdempotencyKey: i.Origin.IdempotencyKey, InfraConfigHash: i.Origin.InfraConfigHash,
		},
		Type: i.Resources.Type,
	}
}

// ownershipTag is on each virtual machine of this project.
const ownershipTag = "nstance"

// The prefixes of the tags with ids: a cluster may have the name of a shard of another one.
const (
	clusterTag = "nstance-cluster-"
	shardTag   = "nstance-shard-"
)

// tagsOf returns the tags of the virtual machines of a shard.
func tagsOf(shard provider.Shard) []string {
	return []string{ownershipTag, clusterTag + shard.ClusterID, shardTag + shard.ID}
}

// splitTags returns the tags in a text.
func splitTags(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}

// hasTags reports whether a text has all tags of a shard.
func hasTags(shard provider.Shard, text string) bool {
	tags := splitTags(text)
	return !slices.ContainsFunc(tagsOf(shard), func(tag string) bool { return !slices.Contains(tags, tag) })
}

// hasOtherTags reports whether a text has all tags of another shard.
func hasOtherTags(shard provider.Shard, text string) bool {
	tags := splitTags(text)
	lacks := func(prefix string) bool {
		return !slices.ContainsFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) })
	}
	return slices.Contains(tags, ownershipTag) && !lacks(clusterTag) && !lacks(shardTag) && !hasTags(shard, text)
}
