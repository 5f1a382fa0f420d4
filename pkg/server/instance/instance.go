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

	corev1 "k8s.io/api/core/v1"
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
	// Pending instances are ordered, or shall be, and are not there yet.
	Pending State = iota
	// Running instances are there, and their provider has no complaint.
	Running
	// Impaired instances run, but their provider says that they are not well:
	// what runs on them can be moved away.
	Impaired
	// Stopped instances are there and do not run, or are about to stop.
	Stopped
	// Failed instances will never run.
	Failed
	// Missing instances were there, and their provider knows them no more. A
	// provider never says so: it is found out.
	Missing
	// Terminating instances are on their way out. They can only go from here.
	Terminating
)

// VM is one instance as its provider sees it.
type VM struct {
	// ID is the permanent identity of the instance, a puidv7. The provider keeps
	// it as metadata of its own.
	ID string
	// ProviderID is the provider's own id. It may be empty while pending.
	ProviderID string
	Group      GroupKey
	// State is never Missing.
	State State
}

// Spec is an order for one instance.
type Spec struct {
	// ID is made by the server, and is used for one instance only.
	ID    string
	Group GroupKey
	// Template and Kind are the template's name and its prefix of ids.
	Template string
	Kind     string
	// CreatedAt is when the instance was decided on.
	CreatedAt time.Time
	// Type is from the catalogue that was in force when the order was decided
	// on: the provider needs to know of no other.
	Type Type
	// Subnet is the provider's subnet that the instance shall be in.
	Subnet string
	// Args are the provider's own arguments, merged and rendered.
	Args map[string]any
	// Userdata is what the instance starts with, rendered. It has the nonce in
	// it: it must not be logged, nor stored where others read.
	Userdata []byte
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
	// before, and tries again. An order to create that is refused for good it
	// gives up: it knows the instance no more, which is a change. An error means
	// that Run could not start.
	Run(ctx context.Context, changed func(GroupKey), failed FailureFunc) error
	// Synced is closed when Get, List and Groups are complete for the first time.
	Synced() <-chan struct{}
	// Get returns false for an instance that the provider does not know. Like
	// the next two it answers from memory.
	Get(id string) (VM, bool)
	// List returns the instances of a group in no particular order. An instance
	// is listed from the return of its Create until it is gone.
	List(group GroupKey) []VM
	// Groups returns the groups that instances say they are of, in no particular
	// order.
	Groups() []GroupKey
	// ExpectedNode returns what is certain of the Node of an instance before there
	// is one: architecture, operating system, capacity, labels and taints. Of the
	// order are known the group, what its template says, the type, and those
	// arguments that are the same for all. It answers from memory, and nil when
	// nothing is certain.
	ExpectedNode(spec Spec) *corev1.Node
	// Capacity returns how many more instances a subnet has room for.
	Capacity(ctx context.Context, subnet string) (int, error)
	// Create orders an instance. It does not wait until the instance runs. The
	// same id gives the same instance, however often it is ordered. When the
	// quota of its type is used up or its subnet is full, the error says so.
	Create(ctx context.Context, spec Spec) error
	// Delete ends an instance, pending or running. It does not wait until the
	// instance is gone. Deleting one that is gone or going succeeds.
	Delete(ctx context.Context, id string) error
}
