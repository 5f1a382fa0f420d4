// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package audit

// Action is what a line of the audit trail is about. It is the message of the line, and
// the same for the operator and for the servers (docs/operations.md#audit-trail).
type Action string

const (
	// ShrinkGroup means that the size of a group was lowered, and possibly other settings changed.
	ShrinkGroup Action = "Audit: shrink group"
	// ReplaceInstances means that settings of a group were changed, so that its instances
	// are replaced.
	ReplaceInstances Action = "Audit: replace instances of group"
	// DeleteGroup means that what operators have set of a group was deleted.
	DeleteGroup Action = "Audit: delete group"
	// DeleteInstance means that the deletion of an instance was requested.
	DeleteInstance Action = "Audit: delete instance"
	// AcknowledgeDrain means that the Node of an instance is drained, so that the server may
	// delete the instance.
	AcknowledgeDrain Action = "Audit: acknowledge drain"
	// DrainInstance means that a server has begun to drain an instance that it will terminate.
	DrainInstance Action = "Audit: drain instance"
	// TerminateInstance means that a server terminates an instance at its provider.
	TerminateInstance Action = "Audit: terminate instance"
	// DeleteObject means that the operator has deleted an object of the Kubernetes API.
	DeleteObject Action = "Audit: delete object"
)

// Actions are all actions.
var Actions = []Action{
	ShrinkGroup, ReplaceInstances, DeleteGroup, DeleteInstance, AcknowledgeDrain, DrainInstance, TerminateInstance, DeleteObject,
}
