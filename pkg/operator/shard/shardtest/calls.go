// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardtest

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
)

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

// CreateInstance implements shard.Client. A new instance is pending and has the
// next of the ids i-1, i-2 and so on.
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

// call records a call and does what it does, unless it is to fail.
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

// Accept returns the group that a server without extensions makes of config.
func Accept(key string, config shard.GroupConfig) shard.Group {
	return shard.Group{
		Key: key, GroupSettings: config.GroupSettings, Size: config.Size, RemoveFirst: config.RemoveFirst,
		ETag: fmt.Sprintf("etag-of-%d", config.Size),
	}
}
