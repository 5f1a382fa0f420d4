// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package instance says what an instance is, and what a provider of instances
// must do.
package instance

import (
	"cmp"
	"context"
	"strings"
	"time"
)

// GroupKey names a group of this shard.
type GroupKey struct {
	Tenant string
	Group  string
}

// String returns {tenant}/{group}.
func (k GroupKey) String() string {
	return k.Tenant + "/" + k.Group
}

// Compare orders keys by tenant, then by group.
func (k GroupKey) Compare(other GroupKey) int {
	return cmp.Or(strings.Compare(k.Tenant, other.Tenant), strings.Compare(k.Group, other.Group))
}

// State is what an instance is doing.
type State int

const (
	// Pending instances are ordered and not there yet.
	Pending State = iota
	// Running instances are there, whatever their health.
	Running
	// Terminating instances are on their way out. They can only go from here.
	Terminating
)

// Instance is one instance as its provider sees it.
type Instance struct {
	// ID is the permanent identity, a puidv7.
	ID string
	// ProviderID is the provider's own id. It may be empty while pending.
	ProviderID string
	Group      GroupKey
	State      State
	// CreatedAt is when the instance was ordered. It never changes, not even
	// across restarts of the server.
	CreatedAt time.Time
}

// Spec is an order for one instance.
type Spec struct {
	// ID is made by the server, and is used for one instance only.
	ID    string
	Group GroupKey
	// Type is from the catalogue that was in force when the order was decided
	// on: the provider needs to know of no other.
	Type Type
}

// FailureFunc is told that an instance of a group could not be made or ended.
// The id is empty when there is no such instance. The caller tries again, and
// will tell again.
type FailureFunc func(group GroupKey, id string, err error)

// Provider makes and ends instances, and knows those of this cluster and shard,
// no matter which process made them.
type Provider interface {
	// Run follows the instances until ctx ends. It calls changed after an
	// instance of a group came, went or changed; several calls may be made into
	// one. It calls failed when it could not carry out an order that it took
	// before, and tries again. An error means that Run could not start.
	Run(ctx context.Context, changed func(GroupKey), failed FailureFunc) error
	// Synced is closed when List is complete for the first time.
	Synced() <-chan struct{}
	// List returns the instances of a group in no particular order. An instance
	// is listed from the return of its Create until it is gone. List answers
	// from memory.
	List(group GroupKey) []Instance
	// Create orders an instance. It does not wait until the instance runs. When
	// the quota of its type is used up, the error says so.
	Create(ctx context.Context, spec Spec) error
	// Delete ends an instance, pending or running. It does not wait until the
	// instance is gone. Deleting one that is gone or going succeeds.
	Delete(ctx context.Context, id string) error
}
