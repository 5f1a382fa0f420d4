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

// count returns how many instances are pending or running: Nodes with a value in an index,
// and requests that match. Instances that are being deleted do not count. mu must be locked.
func (p *Provider) count(index, value string, match func(provider.Spec) bool) int {
	count := 0
	for _, node := range p.nodesBy(index, value) {
		// Requests are counted below.
		if _, requested := p.requests[node.Name]; !requested && fromNode(node).State != instance.Terminating {
			count++
		}
	}
	for _, request := range p.requests {
		if !request.delete && match(request.spec) {
			count++
		}
	}
	return count
}

// room returns how many more instances fit into a subnet with a capacity. There may
// already be too many, if the capacity was higher before. mu must be locked.
func (p *Provider) room(subnet string, capacity int32) int {
	used := p.count(bySubnet, subnet, func(spec provider.Spec) bool { return spec.Subnet == subnet })
	return max(0, int(capacity)-used)
}

// CheckCapacity returns an error while the quota of the type, or of the type in its market, is
// used up, or the subnet is full.
func (p *Provider) CheckCapacity(spec provider.Spec) error {
	spec.Market = marketArgument.Market(spec.Args)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkCapacity(spec)
}

// checkCapacity is CheckCapacity with mu locked.
func (p *Provider) checkCapacity(spec provider.Spec) error {
	typeName := spec.Type.Name
	if quota := spec.Type.Quota; quota != nil {
		used := p.count(byType, typeName, func(spec provider.Spec) bool { return spec.Type.Name == typeName })
		if used >= int(*quota) {
			return provider.OutOfCapacity("quota of %d %s instances is used up", *quota, typeName)
		}
	}
	if quota, limited := spec.Type.MarketQuotas[spec.Market]; limited {
		used := p.count(byTypeMarket, typeMarket(typeName, spec.Market), func(other provider.Spec) bool {
			return other.Type.Name == typeName && other.Market == spec.Market
		})
		if used >= int(quota) {
			return provider.OutOfCapacity("quota of %d %s/%s instances is used up", quota, typeName, spec.Market)
		}
	}
	if capacity, limited := p.config.Options.SubnetCapacity[spec.Subnet]; limited && p.room(spec.Subnet, capacity) == 0 {
		return provider.OutOfCapacity("no room for more than %d instances in subnet %s", capacity, spec.Subnet)
	}
	return nil
}

// rejection is a response of the API server that every repetition of the request would get.
// The request is given up. After a correction of the configuration, a new request may differ.
type rejection struct {
	err error
	// until is when a similar request may be sent. It is the backoff for a caller that
	// replaces a request as soon as it was given up.
	until time.Time
}

// rejectionKey identifies requests that are rejected together.
type rejectionKey struct {
	group                    instance.GroupKey
	typeName, subnet, market string
}

func rejectionKeyOf(spec provider.Spec) rejectionKey {
	return rejectionKey{group: spec.Group, typeName: spec.Type.Name, subnet: spec.Subnet, market: spec.Market}
}

// isRejection reports whether the same call will fail again.
func isRejection(err error) bool {
	return errors.Is(err, errForeignNode) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// giveUp removes a request to create an instance, unless it has become a request to delete.
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
