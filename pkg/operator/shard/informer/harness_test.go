// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// shardID is the main shard of a test, the default of servertest.
const shardID = "us-west-2a"

// timeout is how long a condition may take on a busy machine.
const timeout = time.Minute

// operator has the shard side of an operator: identity, pool and informers with their real
// timing, over TCP and mutual TLS.
type operator struct {
	*shardtest.Servers

	mu sync.Mutex
	// changed is closed and replaced whenever a handler was called.
	changed chan struct{}
	// errors are the events of the calls of OnError.
	errors []shard.ErrorEvent
	// received are the notices at the calls of OnInstance, without removals.
	received []shard.DeletionNotice
}

func startOperator(t *testing.T, endpoints map[string]string) *operator {
	t.Helper()
	o := &operator{Servers: shardtest.StartServers(t), changed: make(chan struct{})}
	o.Groups.AddHandler(shard.GroupHandler{
		OnGroup: func(string, string) { o.signal() },
		OnShard: func(string) { o.signal() },
		OnError: func(_ string, event shard.ErrorEvent) {
			o.mu.Lock()
			o.errors = append(o.errors, event)
			o.mu.Unlock()
			o.signal()
		},
	})
	o.Notices.AddHandler(shard.NoticeHandler{
		OnInstance: func(shard, id string) {
			if notice, ok := o.Notices.Get(shard, id); ok {
				o.mu.Lock()
				o.received = append(o.received, notice)
				o.mu.Unlock()
			}
			o.signal()
		},
		OnShard: func(string) { o.signal() },
	})
	o.set(endpoints)
	o.Connect()
	return o
}

func (o *operator) set(endpoints map[string]string) {
	parsed := map[string]shard.Endpoint{}
	for id, address := range endpoints {
		parsed[id] = shard.Endpoint{Operator: address}
	}
	o.Set(parsed)
}

// signal makes eventually check its condition again.
func (o *operator) signal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// reportedErrors returns the errors that were reported so far.
func (o *operator) reportedErrors() []shard.ErrorEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.errors)
}

// receivedNotices returns the notices that were received so far.
func (o *operator) receivedNotices() []shard.DeletionNotice {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.received)
}

func (o *operator) next() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// eventually waits until condition is true. It is checked after each call of a handler.
func (o *operator) eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		next := o.next()
		if condition() {
			return
		}
		select {
		case <-next:
		case <-deadline:
			t.Fatalf("after %v still not: %s", timeout, what)
		}
	}
}

func (o *operator) expectReachable(t *testing.T, want bool) {
	t.Helper()
	o.eventually(t, fmt.Sprintf("reachable of %s is %t", shardID, want), func() bool {
		got, _ := o.Groups.Reachable(shardID)
		return got == want
	})
}

func (o *operator) expectSettled(t *testing.T, want bool) {
	t.Helper()
	o.eventually(t, fmt.Sprintf("settled of %s is %t", shardID, want), func() bool { return o.Notices.Settled(shardID) == want })
}

// expectNotices waits until there are n notices of a state, and no other notices.
func (o *operator) expectNotices(t *testing.T, n int, state shard.NoticeState) []shard.DeletionNotice {
	t.Helper()
	var list []shard.DeletionNotice
	o.eventually(t, fmt.Sprintf("shard %s has %d notices of state %s", shardID, n, state), func() bool {
		list = o.Notices.List(shardID)
		return len(list) == n && !slices.ContainsFunc(list, func(notice shard.DeletionNotice) bool { return notice.State != state })
	})
	return list
}

// expectInstances waits until a group has n instances.
func (o *operator) expectInstances(t *testing.T, key string, n int) shard.Group {
	t.Helper()
	var group shard.Group
	o.eventually(t, fmt.Sprintf("group %s of shard %s has %d instances", key, shardID, n), func() bool {
		group, _ = o.Groups.Get(shardID, key)
		return int(group.ActualSize) == n && len(group.ProviderIDs) == n
	})
	return group
}

// scale changes the size of group workers, as a controller does.
func (o *operator) scale(t *testing.T, size int32) shard.Group {
	t.Helper()
	group, err := o.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}, Size: size})
	require.NoError(t, err)
	o.Groups.Observe(shardID, group)
	return group
}
