// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "context"

// Set is the set of configured shards. Handlers receive the id of each shard that
// is added or removed.
type Set interface {
	// Has reports whether the shard is configured, connected or not.
	Has(shard string) bool
	// Shards returns the ids of the configured shards, sorted.
	Shards() []string
	// AddHandler registers handler. It must return quickly.
	AddHandler(handler func(shard string))
}

// Client calls the servers of shards. Every call has a deadline. A shard that is
// not configured is ErrUnknownShard; see IsUnreachable, IsRejected, IsStale and
// IsNotFound for the rest.
type Client interface {
	// UpsertGroup makes a group on a shard equal to config, and returns it as the
	// server then has it. Repeating the call changes nothing. IsStale is true of the
	// error when the server has accepted a newer revision.
	UpsertGroup(ctx context.Context, shard, key string, config GroupConfig) (Group, error)
	// DeleteGroup deletes what UpsertGroup stored. It succeeds when there is none, and
	// when the server knows that the group of the revision's object was deleted before:
	// the group is then that of another object and stays. revision is nil for none.
	DeleteGroup(ctx context.Context, shard, key string, revision *Revision) error
	// CreateInstance creates one on-demand instance. Repeating the call with the
	// same request id and spec returns the same instance.
	CreateInstance(ctx context.Context, shard, requestID string, spec InstanceSpec) (Instance, error)
	// GetInstance returns one instance. IsNotFound is true of the error when the
	// server does not have it.
	GetInstance(ctx context.Context, shard, id string) (Instance, error)
	// DeleteInstance terminates an instance without a drain, and reports whether it
	// was deleted before.
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
	// HasSynced reports whether the cache has all groups of the shard.
	HasSynced(shard string) bool
	// Reachable reports whether the shard is connected, and the reason when it is
	// not. There is no reason while the first connection is being made.
	Reachable(shard string) (bool, error)
	// Relist has the groups of a shard listed soon, and returns a mark for ListedSince.
	Relist(shard string) (mark uint64)
	// ListedSince reports whether the cache has the groups of a list that began after the
	// call of Relist that returned mark: they are newer than a call of the Client that had
	// returned before.
	ListedSince(shard string, mark uint64) bool
	// Observe puts the reply to UpsertGroup into the cache. No handler is called.
	Observe(shard string, group Group)
	// AddHandler registers handler.
	AddHandler(handler GroupHandler)
}

// GroupHandler receives changes of the cache of groups, and errors that shards
// report. It receives keys and not values, because a sync reads the cache. The
// functions are called by the goroutines that read the shards and must return
// quickly. A nil function is not called.
type GroupHandler struct {
	// OnGroup is called when a group was added, changed or removed.
	OnGroup func(shard, key string)
	// OnShard is called when HasSynced or Reachable of a shard changed.
	OnShard func(shard string)
	// OnError is called once for each error that a shard reports. Errors that
	// happen while the shard is not connected are lost, and some servers report
	// none.
	OnError func(shard string, event ErrorEvent)
}

// Notices is the cache of deletion notices that shards report.
type Notices interface {
	// Get returns the last notice of an instance, and whether the cache has one.
	Get(shard, id string) (DeletionNotice, bool)
	// List returns the last notice of each instance of a shard, by id.
	List(shard string) []DeletionNotice
	// Settled reports whether the cache has all present notices of the shard: an
	// instance without a notice is not being drained then.
	Settled(shard string) bool
	// Session is a number that grows each time the watch of the shard was opened
	// and has settled; 0 before the first. An instance that was verified in one
	// session needs no verification before the next.
	Session(shard string) int64
	// AddHandler registers handler.
	AddHandler(handler NoticeHandler)
}

// NoticeHandler receives changes of the cache of deletion notices. The functions
// are called by the goroutines that read the shards and must return quickly. A nil
// function is not called.
type NoticeHandler struct {
	// OnInstance is called when a notice of an instance arrived or was removed. A
	// notice that repeats the cached one counts too: the server expects an
	// acknowledgement for each.
	OnInstance func(shard, id string)
	// OnShard is called when Settled of a shard changed.
	OnShard func(shard string)
}
