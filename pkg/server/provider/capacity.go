// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"errors"
	"fmt"
)

// CapacityError means that an instance was not created because the quota of its type is
// used up, its subnet is full, or the cloud is out of stock. The same request may succeed
// later, or on another shard. No other error of Create is one.
type CapacityError struct{ text string }

// OutOfCapacity returns a CapacityError. It is reported as a state, so its text must be
// the same for each attempt: it has no instance id, time or count that changes.
func OutOfCapacity(format string, args ...any) error {
	return &CapacityError{text: "out of capacity: " + fmt.Sprintf(format, args...)}
}

func (e *CapacityError) Error() string { return e.text }

// AsCapacityError returns the CapacityError that err wraps, and whether there is one.
func AsCapacityError(err error) (*CapacityError, bool) {
	return errors.AsType[*CapacityError](err)
}

// CapacityChecker is implemented by a Provider that knows before a request whether it
// would have to reject it.
type CapacityChecker interface {
	// CheckCapacity returns the CapacityError with which Create would reject an instance of
	// this group, type and subnet at present, nil if there is none. It reads memory only.
	CheckCapacity(spec Spec) error
}
