// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardtest fakes the interfaces of package shard: the set of shards, the calls to
// their servers, and the caches. Servers uses real servers instead.
package shardtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
)

// Shards implements shard.Set and shard.Client; Groups and Notices return its
// caches. Tests read and write its fields directly, or by Update while a
// controller runs.
type Shards struct {
	// ByID are the configured shards.
	ByID map[string]*Shard
	// Fail has the error of calls, by the first word of their description in Calls, such as
	// "upsert" or "create".
	Fail map[string]error
	// OnUpsert replaces the reply to UpsertGroup. By default the group gets the
	// configuration.
	OnUpsert func(id, key string, config shard.GroupConfig) (shard.Group, error)
	// OnDelete replaces the reply to DeleteGroup, which succeeds by default.
	OnDelete func(id, key string, revision *shard.Revision) error
	// OnCreate is called before each call of CreateInstance, without the lock.
	OnCreate func(id, requestID string)
	// OnCall is called before each call with its description, without the lock.
	OnCall func(call string)

	mu             sync.Mutex
	calls          []string
	acknowledged   []string
	handlers       []func(string)
	groupHandlers  []shard.GroupHandler
	noticeHandlers []shard.NoticeHandler
}

// Shard is the state of one shard.
type Shard struct {
	// Synced, Reachable and Settled are the results of the caches' methods. Lost is the reason
	// while the shard is not reachable.
	Synced, Reachable, Settled bool
	Lost                       error
	// Unlisted is set while the list that Relist requested has not succeeded.
	Unlisted bool
	// Session is the number of the watch of notices.
	Session int64
	// Groups are the cached groups by key.
	Groups map[string]shard.Group
	// Notices are the cached deletion notices by instance id.
	Notices map[string]shard.DeletionNotice
	// Instances are the instances of the server by id.
	Instances map[string]shard.Instance
	// Deleted is the result of DeleteInstance for an instance that exists.
	Deleted bool
	// Requests are the ids of instances by the id of the request that created them.
	Requests map[string]string
}

var (
	_ shard.Set     = (*Shards)(nil)
	_ shard.Client  = (*Shards)(nil)
	_ shard.Groups  = Groups{}
	_ shard.Notices = Notices{}
)

// New returns shards that are configured, connected and synced, without groups.
func New(ids ...string) *Shards {
	s := &Shards{ByID: map[string]*Shard{}, Fail: map[string]error{}}
	for _, id := range ids {
		s.ByID[id] = NewShard()
	}
	return s
}

// NewShard returns a shard that is connected and synced, without groups.
func NewShard() *Shard {
	return &Shard{
		Synced: true, Reachable: true, Settled: true,
		Groups:    map[string]shard.Group{},
		Notices:   map[string]shard.DeletionNotice{},
		Instances: map[string]shard.Instance{},
		Requests:  map[string]string{},
	}
}

// Update runs change while holding the lock of caches and calls.
func (s *Shards) Update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// SetGroup puts group into the cache of a shard. No handler is called.
func (s *Shards) SetGroup(id string, group shard.Group) {
	s.Update(func() { s.ByID[id].Groups[group.Key] = group })
}

// Calls returns the calls since the previous Calls, such as "upsert workers on a".
func (s *Shards) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Acknowledged returns the ids of the instances whose drains were acknowledged, in
// order.
func (s *Shards) Acknowledged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acknowledged)
}

// Has implements shard.Set.
func (s *Shards) Has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ByID[id] != nil
}

// Shards implements shard.Set.
func (s *Shards) Shards() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ByID))
}

// AddHandler implements shard.Set.
func (s *Shards) AddHandler(handler func(string)) { s.handlers = append(s.handlers, handler) }

// NotifyShard calls the handlers for a change of a shard's connection.
func (s *Shards) NotifyShard(id string) {
	for _, handler := range s.handlers {
		handler(id)
	}
	for _, handler := range s.groupHandlers {
		if handler.OnShard != nil {
			handler.OnShard(id)
		}
	}
	for _, handler := range s.noticeHandlers {
		if handler.OnShard != nil {
			handler.OnShard(id)
		}
	}
}

// NotifyGroup calls the handlers for a change of a cached group.
func (s *Shards) NotifyGroup(id, key string) {
	for _, handler := range s.groupHandlers {
		if handler.OnGroup != nil {
			handler.OnGroup(id, key)
		}
	}
}

// NotifyError calls the handlers for an error that a shard reports.
func (s *Shards) NotifyError(id string, event shard.ErrorEvent) {
	for _, handler := range s.groupHandlers {
		if handler.OnError != nil {
			handler.OnError(id, event)
		}
	}
}

// NotifyInstance calls the handlers for a notice of an instance.
func (s *Shards) NotifyInstance(id, instance string) {
	for _, handler := range s.noticeHandlers {
		if handler.OnInstance != nil {
			handler.OnInstance(id, instance)
		}
	}
}

// Unavailable is the error of a call to a server that does not respond.
var Unavailable = status.Error(codes.Unavailable, "connection refused")

// UpsertGroup implements shard.Client.
func (s *Shards) UpsertGroup(_ context.Context, id, key string, config shard.GroupConfig) (group shard.Group, err error) {
	err = s.call(id, fmt.Sprintf("upsert %s on %s with size %d", key, id, config.Size), func(*Shard) error {
		if s.OnUpsert != nil {
			group, err = s.OnUpsert(id, key, config)
			return err
		}
		group = Accept(key, config)
		return nil
	})
	return group, err
}

// DeleteGroup implements shard.Client.
func (s *Shards) DeleteGroup(_ context.Context, id, key string, revision *shard.Revision) error {
	return s.call(id, fmt.Sprintf("delete %s on %s", key, id), func(*Shard) error {
		if s.OnDelete != nil {
			return s.OnDelete(id, key, revision)
		}
		return nil
	})
}

// CreateInstance implements shard.Client. A new instance is pending and has the next id of
// i-1, i-2 and so on.
func (s *Shards) CreateInstance(_ context.Context, id, requestID string, spec shard.InstanceSpec) (instance shard.Instance, err error) {
	if s.OnCreate != nil {
		s.OnCreate(id, requestID)
	}
	err = s.call(id, fmt.Sprintf("create %s of %s on %s", spec.InstanceType, spec.Group, id), func(on *Shard) error {
		instanceID, ok := on.Requests[requestID]
		if !ok {
			created := 0
			for _, other := range s.ByID {
				created += len(other.Requests)
			}
			instanceID = fmt.Sprintf("i-%d", created+1)
			on.Requests[requestID] = instanceID
			if _, ok := on.Instances[instanceID]; !ok {
				on.Instances[instanceID] = shard.Instance{ID: instanceID, State: shard.InstancePending}
			}
		}
		instance = shard.Instance{ID: instanceID, State: shard.InstancePending}
		return nil
	})
	return instance, err
}

// GetInstance implements shard.Client.
func (s *Shards) GetInstance(_ context.Context, id, instanceID string) (instance shard.Instance, err error) {
	err = s.call(id, fmt.Sprintf("get %s on %s", instanceID, id), func(on *Shard) error {
		var ok bool
		if instance, ok = on.Instances[instanceID]; !ok {
			return status.Errorf(codes.NotFound, "instance %s not found", instanceID)
		}
		return nil
	})
	return instance, err
}

// DeleteInstance implements shard.Client.
func (s *Shards) DeleteInstance(_ context.Context, id, instanceID string) (deleted bool, err error) {
	err = s.call(id, fmt.Sprintf("delete %s on %s", instanceID, id), func(on *Shard) error {
		deleted = on.Deleted
		return nil
	})
	return deleted, err
}

// AcknowledgeDrained implements shard.Client.
func (s *Shards) AcknowledgeDrained(_ context.Context, id, instanceID string) error {
	return s.call(id, fmt.Sprintf("acknowledge %s on %s", instanceID, id), func(*Shard) error {
		s.acknowledged = append(s.acknowledged, instanceID)
		return nil
	})
}

// call records a call, and carries it out unless Fail has an error for it.
func (s *Shards) call(id, description string, do func(*Shard) error) error {
	if s.OnCall != nil {
		s.OnCall(description)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, description)
	verb, _, _ := strings.Cut(description, " ")
	if err := s.Fail[verb]; err != nil {
		return err
	}
	on := s.ByID[id]
	if on == nil {
		return shard.ErrUnknownShard
	}
	return do(on)
}

// Accept returns the reply of a server without extensions to config.
func Accept(key string, config shard.GroupConfig) shard.Group {
	return shard.Group{
		Key: key, GroupSettings: config.GroupSettings, Size: config.Size, RemoveFirst: config.RemoveFirst,
		ETag: fmt.Sprintf("etag-of-%d", config.Size),
	}
}
