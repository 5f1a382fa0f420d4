// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shard is the interface between the operator's controllers and the shard servers.
//
// A shard is one zone, served by one leading shard server, which creates and deletes the
// instances of the shard's groups. The endpoints ConfigMap names the shards (ParseEndpoints);
// Set has the configured shards.
//
// Controllers read the caches Groups and Notices, and change shards by Client. A shard may be
// unreachable for any time: its cached state stays, and controllers must not conclude that
// something does not exist unless the cache has synced (Groups.HasSynced, Notices.Settled).
//
// Controllers choose the reaction to an error by the functions in errors.go. After
// IsUnreachable and IsUnclear the call may have had an effect, and must be repeated with the
// same request. After IsRejected the same request fails again. IsStale is the reply to a
// request of a former leader: each group stores the Revision of the Kubernetes object that
// last set it, and the server rejects older revisions.
//
// The server sends some events, such as the deletion of an instance, only once, to open
// watches. Notices.Session numbers the watches: after a controller has verified an instance
// by a call in one session, the events of this session report all later changes of it.
//
// Packages connpool and informer implement the interfaces, and package shardtest fakes them.
package shard

import (
	"context"
	"time"
)

// Set is the set of configured shards. Handlers receive the id of each shard that
// is added or removed.
type Set interface {
	// Has reports whether the shard is configured, connected or not.
	Has(shard string) bool
	// Shards returns the sorted ids of the configured shards.
	Shards() []string
	// AddHandler registers handler. It must return quickly.
	AddHandler(handler func(shard string))
}

// Client calls the servers of shards. Every call has a timeout. A call to a shard that is not
// configured returns ErrUnknownShard; for other errors see IsUnreachable, IsRejected, IsStale
// and IsNotFound.
type Client interface {
	// UpsertGroup makes a group on a shard equal to config, and returns the resulting group.
	// Repeating the call changes nothing. IsStale(err) is true if the server has accepted a
	// newer revision.
	UpsertGroup(ctx context.Context, shard, key string, config GroupConfig) (Group, error)
	// DeleteGroup deletes the configuration of UpsertGroup. It succeeds if the server does not
	// have the group, or if it knows that the group of the revision's object was deleted
	// before: a group that then exists belongs to another object and stays. revision may be
	// nil.
	DeleteGroup(ctx context.Context, shard, key string, revision *Revision) error
	// CreateInstance creates an on-demand instance. Repeating the call with the same request
	// id and spec returns the same instance.
	CreateInstance(ctx context.Context, shard, requestID string, spec InstanceSpec) (Instance, error)
	// GetInstance returns an instance. IsNotFound(err) is true if the server does not have it.
	GetInstance(ctx context.Context, shard, id string) (Instance, error)
	// DeleteInstance terminates an instance without a drain, and reports whether its deletion
	// is complete.
	DeleteInstance(ctx context.Context, shard, id string) (deleted bool, err error)
	// AcknowledgeDrained confirms that the Node of an instance is drained.
	AcknowledgeDrained(ctx context.Context, shard, id string) error
}

// Groups is the cache of the groups that shards report.
type Groups interface {
	// Get returns a group of a shard, and whether the cache has it.
	Get(shard, key string) (Group, bool)
	// List returns the groups of a shard, by key.
	List(shard string) []Group
	// ShardsWith returns the sorted ids of the shards whose cached groups contain a group, without
	// looking at other shards. A shard that is no longer configured may be among them. The result
	// must not be modified.
	ShardsWith(key string) []string
	// HasSynced reports whether the cache has all groups of the shard.
	HasSynced(shard string) bool
	// Reachable reports whether the shard is connected, and the reason if it is not. The
	// reason is nil while the first connection is being established.
	Reachable(shard string) (bool, error)
	// Relist requests a list of a shard's groups, and returns a mark for ListedSince.
	Relist(shard string) (mark uint64)
	// ListedSince reports whether the cache has the groups of a list that began after the call
	// of Relist that returned mark. They are newer than any call of Client that had returned
	// before.
	ListedSince(shard string, mark uint64) bool
	// Observe puts the reply to UpsertGroup into the cache. No handler is called.
	Observe(shard string, group Group)
	// AddHandler registers handler.
	AddHandler(handler GroupHandler)
}

// GroupHandler receives changes of the cache of groups, and errors that shards report. It
// receives keys and not values, because a sync reads the cache. The functions must return
// quickly, because the goroutines that read the shards call them. A nil function is not
// called.
type GroupHandler struct {
	// OnGroup is called when a group was added, changed or removed.
	OnGroup func(shard, key string)
	// OnShard is called when HasSynced or Reachable of a shard changed.
	OnShard func(shard string)
	// OnError is called once for each error that a shard reports. Errors that occur while the
	// shard is not connected are lost, and some servers report no errors.
	OnError func(shard string, event ErrorEvent)
}

// Notices is the cache of deletion notices that shards report.
type Notices interface {
	// Get returns the last notice of an instance, and whether the cache has a notice.
	Get(shard, id string) (DeletionNotice, bool)
	// List returns the last notice of each instance of a shard, sorted by instance id.
	List(shard string) []DeletionNotice
	// Settled reports whether the cache has all present notices of the shard. Only then an
	// instance without a notice is not being drained.
	Settled(shard string) bool
	// Session returns a number that grows each time the watch of the shard was opened and has
	// settled; 0 before that. An instance that was verified in one session needs no
	// verification before the next session.
	Session(shard string) int64
	// AddHandler registers handler.
	AddHandler(handler NoticeHandler)
}

// NoticeHandler receives changes of the cache of deletion notices. The functions must return
// quickly, because the goroutines that read the shards call them. A nil function is not
// called.
type NoticeHandler struct {
	// OnInstance is called when a notice of an instance arrived or was removed. It is also
	// called for a notice that equals the cached notice, because the server expects an
	// acknowledgement for each notice.
	OnInstance func(shard, id string)
	// OnShard is called when Settled of a shard changed.
	OnShard func(shard string)
}

// Link is the state of the watch of a shard's groups, for metrics. Times are by the clock of
// this process, and zero before the first event.
type Link struct {
	// LastList is when the groups were last listed.
	LastList time.Time
	// LastMessage is when the watch was opened or delivered its last event.
	LastMessage time.Time
	// Reconnects is how often the watch was opened after the first time.
	Reconnects int
}
