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
