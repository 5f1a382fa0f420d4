// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/shard"
)

// unreachable is a call without an answer.
var unreachable = status.Error(codes.Unavailable, "connection refused")

// refusing is the answer of a shard that does not make what was asked for.
var refusing = status.Error(codes.FailedPrecondition, "group does not exist")

// shards are what the controller knows of its shards, with instances that do what
// the test says. They are no servers.
type shards struct {
	mu    sync.Mutex
	byID  map[string]*oneShard
	calls []string
	// instances are those that were made, by id, and requested their ids by shard
	// and request.
	instances map[string]*shard.Instance
	requested map[string]string
	// fail are the errors of calls, by the first word that is written down.
	fail map[string]error
	// deleted is what DeleteInstance says.
	deleted bool
	// ordered is called with each order before it is carried out.
	ordered func(id, request string)

	notices map[string]shard.Notice
	session int64
	drains  drain
}

// oneShard is configured, and has the group "workers" or not.
type oneShard struct {
	synced, reachable, hasGroup bool

	lost error
	etag string

	// lists: the shard lists the instances of the group, which are listed.
	lists       bool
	listed      []shard.Instance
	removeFirst []string
}

// list has shard a list these instances and no others.
func (s *shards) list(instances ...shard.Instance) {
	s.byID["a"].lists, s.byID["a"].listed = true, instances
}

// newShards are shards that are connected and have the group.
func newShards(ids ...string) *shards {
	s := &shards{
		byID: map[string]*oneShard{}, instances: map[string]*shard.Instance{}, requested: map[string]string{},
		fail: map[string]error{}, notices: map[string]shard.Notice{},
	}
	for _, id := range ids {
		s.byID[id] = &oneShard{synced: true, reachable: true, hasGroup: true, etag: "1"}
	}
	return s
}

func (s *shards) Has(id string) bool { return s.byID[id] != nil }

func (s *shards) Shards() []string {
	var ids []string
	for id := range s.byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (s *shards) HasSynced(id string) bool { return s.Has(id) && s.byID[id].synced }

func (s *shards) Reachable(id string) (bool, error) {
	if !s.Has(id) {
		return false, nil
	}
	return s.byID[id].reachable, s.byID[id].lost
}

// notices are the shards as the cache of what they announce.
type notices struct{ *shards }

func (s *shards) Get(id, key string) (shard.Group, bool) {
	if !s.Has(id) || !s.byID[id].hasGroup || key != "workers" {
		return shard.Group{}, false
	}
	return shard.Group{
		Key: key, ETag: s.byID[id].etag,
		ListsInstances: s.byID[id].lists, Instances: s.byID[id].listed, RemoveFirst: s.byID[id].removeFirst,
	}, true
}

func (n notices) Get(_, instance string) (shard.Notice, bool) {
	notice, ok := n.notices[instance]
	return notice, ok
}

func (n notices) Session(string) int64 { return n.session }

func (s *shards) OfInstance(_, _ string) (blocked bool, message string, draining bool) {
	return s.drains.blocked, s.drains.message, s.drains.running
}

func (s *shards) CreateInstance(_ context.Context, id, request string, order shard.InstanceOrder) (shard.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("create %s of %s on %s", order.InstanceType, order.Group, id))
	if s.ordered != nil {
		s.ordered(id, request)
	}
	if err := s.fail["create"]; err != nil {
		return shard.Instance{}, err
	}
	instance, ok := s.requested[id+"/"+request]
	if !ok {
		instance = fmt.Sprintf("i-%d", len(s.requested)+1)
		s.requested[id+"/"+request] = instance
		if s.instances[instance] == nil {
			s.instances[instance] = &shard.Instance{ID: instance, State: shard.InstancePending}
		}
	}
	return shard.Instance{ID: instance, State: shard.InstancePending}, nil
}

func (s *shards) Instance(_ context.Context, id, instance string) (shard.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("ask for %s on %s", instance, id))
	if err := s.fail["ask"]; err != nil {
		return shard.Instance{}, err
	}
	found, ok := s.instances[instance]
	if !ok {
		return shard.Instance{}, fmt.Errorf("asking: %w", status.Error(codes.NotFound, "not known"))
	}
	return *found, nil
}

func (s *shards) DeleteInstance(_ context.Context, id, instance string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("delete %s on %s", instance, id))
	return s.deleted, s.fail["delete"]
}

// told are the calls since the last time.
func (s *shards) told() []string {
	calls := s.calls
	s.calls = nil
	return calls
}

// run makes instance i-1 one that runs.
func (s *shards) run() {
	s.instances["i-1"] = &shard.Instance{ID: "i-1", State: shard.InstanceRunning, ProviderID: "provider-i-1"}
}
