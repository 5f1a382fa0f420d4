// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import "time"

// Record is what is durable of an instance: one object in the storage, written
// before the provider is asked for the instance and removed after the provider
// has said that the instance is gone. After it was made only ProviderID and
// DeletionRequestedAt change, each once, from nothing to something (server
// document).
type Record struct {
	// ID is the permanent identity, a puidv7.
	ID     string `json:"instance_id"`
	Tenant string `json:"tenant"`
	Group  string `json:"group"`
	// OnDemand instances are beside the size of their group.
	OnDemand bool `json:"on_demand,omitempty"`
	// IdempotencyKey is what the caller that ordered an on-demand instance gave.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Overrides of what the group says, of an on-demand instance only.
	Template     string            `json:"template,omitempty"`
	InstanceType string            `json:"instance_type,omitempty"`
	SubnetPool   string            `json:"subnet_pool,omitempty"`
	Vars         map[string]string `json:"vars,omitempty"`
	// InfraConfigHash is that of the group when the instance was made.
	InfraConfigHash string `json:"infra_config_hash"`
	// CreatedAt is when the instance was decided on. Its age counts from here.
	CreatedAt time.Time `json:"created_at"`
	// ProviderID is the provider's own id, empty until the provider told it.
	ProviderID string `json:"provider_id,omitempty"`
	// DeletionRequestedAt is when a caller asked for the end of the instance, zero
	// until then. Unlike other reasons to go it would not come back by itself, so
	// that it is durable before the caller is answered.
	DeletionRequestedAt time.Time `json:"deletion_requested_at,omitzero"`
}

// Key returns the group of the instance.
func (r *Record) Key() GroupKey {
	return GroupKey{Tenant: r.Tenant, Group: r.Group}
}

// Drain says that an instance is to go when what runs on it has moved away. It
// is kept in the cache only: a server that loses it decides anew.
type Drain struct {
	// Reason is one of the reasons below.
	Reason string
	// StartedAt is when the operator was to be told.
	StartedAt time.Time
	// DeleteAt is when the instance goes without an acknowledgement.
	DeleteAt time.Time
	// Acknowledged is true once the operator has said that the node is drained.
	Acknowledged bool
}

// Reasons for which instances go, as operators are told.
const (
	ReasonScaleDown    = "scale-down"
	ReasonUnhealthy    = "unhealthy"
	ReasonExpired      = "expired"
	ReasonConfigDrift  = "config-drift"
	ReasonRequested    = "requested"
	ReasonUnregistered = "unregistered"
)

// Instance is all that is known of an instance: its record, what its provider
// sees, and what the server is about to do with it.
type Instance struct {
	Record
	// State is the provider's word, or Missing, or Pending for an instance that
	// the provider has never shown.
	State State
	// Known is true when the provider knows the instance now. A pending one that
	// is not known has to be ordered.
	Known bool
	// Drain is nil unless the instance is to go.
	Drain *Drain
	// DeleteReason is set once the provider has been told to end the instance.
	DeleteReason string
	// DeletedAt is set once the instance is gone and its record removed. What is
	// remembered of it then is for those who ask late.
	DeletedAt time.Time
}

// Leaving tells whether it has been decided that the instance goes.
func (i *Instance) Leaving() bool {
	return i.Drain != nil || i.DeleteReason != "" || i.State == Terminating
}

// Gone tells whether nothing runs on the instance, nor ever will.
func (i *Instance) Gone() bool {
	return i.State == Stopped || i.State == Failed || i.State == Missing
}
