// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Create requests a VM. It rejects a request that exceeds a quota or the room of the
// subnet, because several callers may have read the same room. It also rejects a request if
// the cloud has recently rejected one of the same Scope.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) error {
	if err := p.create(ctx, spec); err != nil {
		return fmt.Errorf("create instance %s: %w", spec.ID, err)
	}
	return nil
}

func (p *Provider) create(ctx context.Context, spec provider.Spec) error {
	spec.Market = p.market(spec)
	if _, known := p.Get(spec.ID); known || p.continueLaunch(spec) {
		return nil
	}
	if err := p.refreshRoom(ctx, spec.Subnet); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.table[spec.ID]; known {
		return nil
	}
	if err := p.checkCapacity(spec); err != nil {
		return err
	}
	now := time.Now()
	if err := p.rejections.check(spec, now); err != nil {
		return err
	}
	r := &request{spec: spec, created: now}
	if _, former := p.former[spec.ID]; former {
		p.searchFormer(r)
	}
	p.request(r)
	return nil
}

// continueLaunch requests an instance again whose former request may have had an effect, and returns
// false for other instances. Only the userdata is new. The request is not checked: with another type,
// subnet or market it would be another VM, and a rejection would say that there is no VM.
func (p *Provider) continueLaunch(spec provider.Spec) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	renewed, found := p.renewed[spec.ID]
	if !found || !renewed.request.uncertain {
		return false
	}
	r := renewed.request
	r.created, r.spec.Userdata = time.Now(), spec.Userdata
	p.request(r)
	return true
}

// request adds the request for an instance. mu must be locked.
func (p *Provider) request(r *request) {
	id := r.spec.ID
	delete(p.renewed, id)
	p.table[id] = &entry{id: id, group: r.spec.Group, origin: r.spec.Origin, request: r}
	p.launches.Add(id)
}

// CheckCapacity returns an error while the quota of the type is used up, the subnet is full
// according to its last known room, or the cloud rejects such requests for lack of capacity.
func (p *Provider) CheckCapacity(spec provider.Spec) error {
	spec.Market = p.market(spec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, read := p.rooms[spec.Subnet]; !read {
		// Create reads the room.
		return nil
	}
	if err := p.checkCapacity(spec); err != nil {
		return err
	}
	return p.rejections.outOfCapacity(spec, time.Now())
}

// checkCapacity returns an error if the quota of the type is used up or the subnet is full.
// mu must be locked.
func (p *Provider) checkCapacity(spec provider.Spec) error {
	if quota := spec.Type.Quota; quota != nil && p.table.countType(spec.Type.Name) >= int(*quota) {
		return provider.OutOfCapacity("quota of %d %s instances is used up", *quota, spec.Type.Name)
	}
	if p.room(spec.Subnet) == 0 {
		return provider.OutOfCapacity("no room in subnet %s", spec.Subnet)
	}
	return nil
}

// market returns the market of a request.
func (p *Provider) market(spec provider.Spec) string {
	if p.options.Market == nil {
		return ""
	}
	return p.options.Market(spec)
}

// searchFormer makes a request search for its VM first: another process may have launched
// it, with another token than the first.
func (p *Provider) searchFormer(r *request) {
	r.search, r.hiddenUntil = true, p.started.Add(p.limits.VisibilityDelay)
}

// Delete requests that an instance is deleted. If its VM is missing, Delete terminates it by its
// ids: no lookup proves that it does not exist (docs/server.md#missing-instances).
func (p *Provider) Delete(ctx context.Context, id string) error {
	if group, dropped := p.startDeletion(id); dropped {
		p.changed(group)
	}
	p.mu.Lock()
	vm, gone := p.gone[id]
	delete(p.gone, id)
	p.mu.Unlock()
	if !gone {
		return nil
	}
	err := p.write(ctx, func(ctx context.Context) error { return p.api.Terminate(ctx, []VM{vm})[id] })
	if err == nil || errors.Is(err, ErrNotFound) {
		return nil
	}
	return fmt.Errorf("terminate the machine of instance %s, which is missing: %w", id, err)
}

// startDeletion stores that an instance is to be deleted. If its VM has ended, nothing is left
// to do: it drops the instance, and returns its group.
func (p *Provider) startDeletion(id string) (group instance.GroupKey, dropped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, known := p.table[id]
	former, unrequested := p.former[id]
	if renewed, found := p.renewed[id]; found {
		if !unrequested && renewed.request.uncertain {
			former, unrequested = renewed.instanceVM(), true
		}
		delete(p.renewed, id)
	}
	if unrequested && !known {
		// The VM may appear later, when the deletion would be forgotten.
		spec := provider.Spec{ID: id, Group: former.Group, Origin: former.Origin}
		e, known = &entry{id: id, group: former.Group, origin: former.Origin, request: &request{spec: spec}}, true
		p.searchFormer(e.request)
		p.table[id] = e
	}
	if !known || e.delete {
		return instance.GroupKey{}, false
	}
	e.delete = true
	switch {
	case e.vm == nil:
		p.launches.Add(id)
	case e.vm.Ended:
		p.drop(e)
		return e.group, true
	default:
		p.terminate.send()
		p.poll.send()
	}
	return instance.GroupKey{}, false
}

// roomAge is how long the known room of a subnet is used without reading it again.
const roomAge = 30 * time.Second

// room is how many more VMs a subnet had room for at a time.
type room struct {
	free int
	at   time.Time
	// outdated is true if there may be more room by now.
	outdated bool
}

// Capacity returns how many more instances a subnet has room for.
func (p *Provider) Capacity(ctx context.Context, subnet string) (int, error) {
	if err := p.refreshRoom(ctx, subnet); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rejections.full(subnet, time.Now()) {
		return 0, nil
	}
	return p.room(subnet), nil
}

// refreshRoom reads the room of a subnet if the known room is old.
func (p *Provider) refreshRoom(ctx context.Context, subnet string) error {
	now := time.Now()
	p.mu.Lock()
	known, found := p.rooms[subnet]
	p.mu.Unlock()
	if found && !known.outdated && now.Sub(known.at) < roomAge {
		return nil
	}
	var free int
	err := p.read(ctx, func(ctx context.Context) (err error) {
		free, err = p.api.Room(ctx, subnet)
		return err
	})
	switch {
	case errors.Is(err, ErrThrottled) && found:
		return nil // use the known room
	case err != nil:
		return fmt.Errorf("read the room of subnet %s: %w", subnet, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rooms[subnet] = room{free: free, at: now}
	return nil
}

// room returns the known room of a subnet minus the VMs that it does not include yet. mu
// must be locked.
func (p *Provider) room(subnet string) int {
	known := p.rooms[subnet]
	return max(0, known.free-p.table.countUnseen(subnet, known.at))
}

// usedTokensAge is how long the number of used tokens of an instance is kept. The server
// gives up a request long before that.
const usedTokensAge = 24 * time.Hour

// usedTokens counts the used tokens of an instance. last is when the latest was used up.
type usedTokens struct {
	count int
	last  time.Time
}

// token returns the token of the next request for an instance. The same request has the
// same token until it was certainly rejected. So a repeated request creates no second VM, if
// the first response was lost, in this process or another.
func (p *Provider) token(id string) string {
	if used := p.tokens[id].count; used > 0 {
		return fmt.Sprintf("%s.%d", id, used)
	}
	return id
}

// useUpToken makes the next request for an instance have another token.
func (p *Provider) useUpToken(id string, now time.Time) {
	maps.DeleteFunc(p.tokens, func(_ string, used usedTokens) bool { return now.Sub(used.last) > usedTokensAge })
	p.tokens[id] = usedTokens{count: p.tokens[id].count + 1, last: now}
}
