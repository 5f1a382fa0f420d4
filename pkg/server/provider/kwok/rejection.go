// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"errors"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// rejection is the API server's response to a request that it will not accept,
// however often it is repeated. The request is given up: the next one may differ,
// after the configuration was corrected.
type rejection struct {
	err error
	// until is when a similar request may be made. It is the backoff of a caller
	// that makes a new request as soon as one is given up.
	until time.Time
}

// rejectionKey identifies requests that are rejected together. It has no instance
// id.
type rejectionKey struct {
	group            instance.GroupKey
	typeName, subnet string
}

func rejectionKeyOf(spec provider.Spec) rejectionKey {
	return rejectionKey{group: spec.Group, typeName: spec.Type.Name, subnet: spec.Subnet}
}

// isRejection reports whether the same call will fail again.
func isRejection(err error) bool {
	return errors.Is(err, errForeignNode) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// giveUp removes a request to create an instance, unless it is one to delete by
// now.
func (p *Provider) giveUp(spec provider.Spec, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.rejections, func(_ rejectionKey, r rejection) bool { return !now.Before(r.until) })
	p.rejections[rejectionKeyOf(spec)] = rejection{err: err, until: now.Add(maxRetryDelay)}
	if !p.requests[spec.ID].delete {
		delete(p.requests, spec.ID)
	}
}
