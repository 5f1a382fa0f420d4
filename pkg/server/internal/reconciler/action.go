// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import "time"

// verb is the kind of an action.
type verb string

const (
	// setProviderID stores the provider's id of an instance.
	setProviderID verb = "set provider id"
	// removeRecord removes the record of a deleted instance.
	removeRecord verb = "remove"
	// terminate deletes an instance at the provider.
	terminate verb = "terminate"
	// terminateAgain repeats the deletion, because the first request may have
	// been lost.
	terminateAgain verb = "terminate again"
	// drain begins the drain of an instance.
	drain verb = "drain"
	// create stores the record of a new instance and creates it at the
	// provider.
	create verb = "create"
	// createRecorded creates an instance at the provider that already has a
	// record.
	createRecorded verb = "create recorded"
)

// reasonScaleUp is the reason for an instance that replaces no other. A
// replacement has the reason for which the other instance is deleted.
const reasonScaleUp = "scale-up"

// action is one step of a plan.
type action struct {
	verb verb
	// id identifies the instance. It is empty for a new one.
	id string
	// reason is why to create, drain or terminate the instance.
	reason string
	// providerID is the id to store.
	providerID string
	// deleteAt is the deadline of a drain without an acknowledgement.
	deleteAt time.Time
}
