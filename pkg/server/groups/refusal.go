// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// InvalidError refuses a change that is ill-formed or refers to something that
// does not exist. It stays refused until the change or the configuration is
// another.
type InvalidError struct {
	Group    instance.GroupKey
	Problems field.ErrorList
}

// Error names every field, its value and what is allowed.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("group %s: %v", e.Group, e.Problems.ToAggregate())
}

// RestrictedError refuses a change of a field that only the configuration may
// set, because the group is static.
type RestrictedError struct {
	Group    instance.GroupKey
	Problems field.ErrorList
}

// Error names every field, its value and what is allowed.
func (e *RestrictedError) Error() string {
	return fmt.Sprintf("group %s is static: %v", e.Group, e.Problems.ToAggregate())
}
