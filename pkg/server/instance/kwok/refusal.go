// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/server/instance"
)

// refusal is the API server's answer to an order that it will not take, however
// often it is repeated. The order is given up: the next one may be another, of a
// configuration that has been corrected.
type refusal struct {
	err error
	// until is when the like may be ordered again. Whoever orders as soon as an
	// order is given up would else never pause.
	until time.Time
}

// likeness is what orders have in common that are refused together, whatever the
// ids of the instances.
type likeness struct {
	group            instance.GroupKey
	typeName, subnet string
}

func likenessOf(spec instance.Spec) likeness {
	return likeness{group: spec.Group, typeName: spec.Type.Name, subnet: spec.Subnet}
}

// isRefusal tells whether the same call will fail again.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// giveUp drops an order to make an instance, unless it shall go by now.
func (p *Provider) giveUp(spec instance.Spec, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.refusals, func(_ likeness, r refusal) bool { return !now.Before(r.until) })
	p.refusals[likenessOf(spec)] = refusal{err: err, until: now.Add(retryAtMost)}
	if !p.orders[spec.ID].end {
		delete(p.orders, spec.ID)
	}
}
