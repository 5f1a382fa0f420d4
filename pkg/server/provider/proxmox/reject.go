// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// retryAfter is when a request that was rejected may succeed: something has to change.
	retryAfter = 30 * time.Second
	// spaceRetryAfter is the same for one that had no space. A clone writes much until it
	// is out of space.
	spaceRetryAfter = 5 * time.Minute
)

// rejectGroup rejects what the arguments of a group cause.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, RetryAfter: retryAfter, Err: err}
}

// afterClone returns what an error means whose clone has not begun, or has removed what it
// made: a rejection, or the error itself if the clone may exist or may be repeated.
func (p plan) afterClone(err error) error {
	if rejection := p.reject(err); rejection != nil {
		return rejection
	}
	return err
}

// Texts in messages of the API and of tasks, in lower case. There are no codes.
var (
	// transient are those after which the same may succeed.
	transient  = []string{lockTimeout, alreadyExists, "quorum", "is locked", "not ready", "unexpected status", "interrupted", "timeout"}
	outOfSpace = []string{"no space left", "not enough space", "not enough free space", "out of space", "insufficient free space", "disk quota exceeded"}
	noMemory   = []string{"cannot allocate memory", "cannot set up guest memory"}
	// subnetFaults are of the storage or the network.
	subnetFaults = []string{"storage '", "no such storage", "bridge '", "no such bridge", "non-shared storage", "uses local storage"}
)

// reject returns the rejection that an error means, nil if it says nothing about other
// requests.
func (p plan) reject(err error) error {
	var message string
	scope := cloud.Scope{Group: p.spec.Group, Type: p.spec.Type.Name, Subnet: p.spec.Subnet}
	if errors.Is(err, cloud.ErrInProgress) || errors.Is(err, cloud.ErrThrottled) {
		return nil
	}
	if failed, ok := errors.AsType[*taskError](err); ok {
		message = failed.exit
	} else if response, ok := errors.AsType[*apiError](err); ok && response.isDefinite() {
		switch response.status {
		case http.StatusUnauthorized:
			return nil
		case http.StatusForbidden:
			return &cloud.Rejection{RetryAfter: retryAfter, Err: err}
		}
		message = response.message
	} else {
		return nil
	}
	after := retryAfter
	switch {
	case containsAny(message, outOfSpace...):
		scope, after = cloud.Scope{Subnet: p.spec.Subnet}, spaceRetryAfter
		err = fmt.Errorf("%w: %w", provider.OutOfCapacity("no space left for subnet %s", p.spec.Subnet), err)
	case containsAny(message, noMemory...):
		scope = cloud.Scope{Type: p.spec.Type.Name}
		err = fmt.Errorf("%w: %w", provider.OutOfCapacity("no memory left for type %s", p.spec.Type.Name), err)
	case containsAny(message, subnetFaults...):
		scope = cloud.Scope{Subnet: p.spec.Subnet}
	case containsAny(message, transient...):
		return nil
	}
	return &cloud.Rejection{Scope: scope, RetryAfter: after, Err: err}
}
