// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// InvalidError rejects a change that is malformed or refers to something
// unknown. The same change is rejected until the configuration changes.
type InvalidError struct {
	Group    instance.GroupKey
	Problems field.ErrorList
}

// Error names every field with its value and the allowed values.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("group %s: %v", e.Group, e.Problems.ToAggregate())
}

// RestrictedError rejects the change of a field that only the configuration may
// set, because the group is static.
type RestrictedError struct {
	Group    instance.GroupKey
	Problems field.ErrorList
}

// Error names every field with its value and the allowed values.
func (e *RestrictedError) Error() string {
	return fmt.Sprintf("group %s is static: %v", e.Group, e.Problems.ToAggregate())
}

// StaleError rejects a request whose revision is older than that of an accepted one.
// It says nothing about the configuration in the request.
type StaleError struct {
	Group    instance.GroupKey
	Revision Revision
	// Stored is the revision of the group, nil when there is none.
	Stored *Revision
}

// Error names both revisions.
func (e *StaleError) Error() string {
	switch {
	case e.Stored == nil:
		return fmt.Sprintf("group %s: the request has generation %d of object %s, whose group was deleted", e.Group, e.Revision.Generation, e.Revision.UID)
	case e.Stored.UID != e.Revision.UID:
		return fmt.Sprintf("group %s: the request has generation %d of object %s, which was replaced by object %s: the group has generation %d of that one",
			e.Group, e.Revision.Generation, e.Revision.UID, e.Stored.UID, e.Stored.Generation)
	default:
		return fmt.Sprintf("group %s: the request has generation %d of object %s, but the group has the newer generation %d",
			e.Group, e.Revision.Generation, e.Revision.UID, e.Stored.Generation)
	}
}
