// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import (
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

// Record is the durable part of an instance: one object in the storage, written
// before the instance is requested from the provider and removed after the
// provider has confirmed its deletion. After creation only ProviderID and
// DeletionRequestedAt change, each once, from empty to set, and Registration
// (docs/server.md#records).
type Record struct {
	// ID is the permanent identity, a puidv7.
	ID     string `json:"instance_id"`
	Tenant string `json:"tenant"`
	Group  string `json:"group"`
	// OnDemand instances do not count towards the size of their group.
	OnDemand bool `json:"on_demand,omitempty"`
	// IdempotencyKey is the key that the client sent when it created an on-demand
	// instance.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Template, InstanceType, SubnetPool, Vars and LoadBalancers override the group's settings.
	// Only on-demand instances have them.
	Template     string            `json:"template,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	SubnetPool   string            `json:"subnet_pool,omitempty"`
	Vars         map[string]string `json:"vars,omitempty"`

	LoadBalancers []string `json:"load_balancers,omitempty"`
	// InfraConfigHash is the group's hash at the time of creation.
	InfraConfigHash string `json:"infra_config_hash"`
	// Adopted is true if the record was created from the metadata that the provider has
	// stored. The overrides of the group's settings are then unknown.
	Adopted bool `json:"adopted,omitempty"`
	// Returned is true if the provider listed the instance again after its record was
	// removed. It is drained and terminated: another instance has its place.
	Returned bool `json:"returned,omitempty"`
	// CreatedAt is when the server decided to create the instance. The age of the
	// instance counts from here.
	CreatedAt time.Time `json:"created_at"`
	// ProviderID is the provider's own id, empty until the provider reports it.
	ProviderID string `json:"provider_id,omitempty"`
	// DeletionRequestedAt is when a client requested the deletion of the instance,
	// zero until then. The server cannot derive this reason again, so it is stored
	// before the client gets its answer.
	DeletionRequestedAt time.Time `json:"deletion_requested_at,omitzero"`
	// Registration is the agent's registration, nil until it has registered. It is never
	// modified, only replaced.
	Registration *Registration `json:"registration,omitempty"`
	// Unknown are fields that a later version has stored.
	Unknown storage.UnknownFields `json:"-"`
}

// plainRecord is a Record without its methods, for package json.
type plainRecord Record

// MarshalRecord returns the stored form of a record.
func MarshalRecord(r Record) ([]byte, error) {
	return storage.Encode(plainRecord(r), r.Unknown)
}

// UnmarshalRecord decodes the result of MarshalRecord of any version.
func UnmarshalRecord(data []byte) (Record, error) {
	plain, unknown, err := storage.Decode[plainRecord](data)
	if err != nil {
		return Record{}, err
	}
	plain.Unknown = unknown
	return Record(plain), nil
}

// Origin returns the part of the record that the provider stores with the instance.
func (r *Record) Origin() Origin {
	return Origin{OnDemand: r.OnDemand, IdempotencyKey: r.IdempotencyKey, InfraConfigHash: r.InfraConfigHash}
}

// Key returns the group of the instance.
func (r *Record) Key() GroupKey {
	return GroupKey{Tenant: r.Tenant, Group: r.Group}
}
