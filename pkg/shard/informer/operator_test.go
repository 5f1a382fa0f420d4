// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/connpool"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shardID is the main shard of a test.
const shardID = "a"

// timeout is how long a condition may take on a busy machine.
const timeout = time.Minute

// operator is the shard side of an operator: identity, pool and informers with
// their real timing, over TCP and mutual TLS.
type operator struct {
	authority *pki.Authority
	identity  *identity.Identity
	pool      *connpool.Pool
	groups    *informer.Groups
	notices   *informer.Notices

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
	o := &operator{authority: newAuthority(t), identity: &identity.Identity{}, groups: informer.NewGroups(), notices: informer.NewNotices(), changed: make(chan struct{})}
	o.issue(t, "first")
	o.pool = connpool.New(connpool.Options{Credentials: o.identity.TransportCredentials()})
	o.groups.AddHandler(shard.GroupHandler{
		OnGroup: func(string, string) { o.signal() },
		OnShard: func(string) { o.signal() },
		OnError: func(_ string, event shard.ErrorEvent) {
			o.mu.Lock()
			o.errors = append(o.errors, event)
			o.mu.Unlock()
			o.signal()
		},
	})
	o.notices.AddHandler(shard.NoticeHandler{
		OnInstance: func(shard, id string) {
			if notice, ok := o.notices.Get(shard, id); ok {
				o.mu.Lock()
				o.received = append(o.received, notice)
				o.mu.Unlock()
			}
			o.signal()
		},
		OnShard: func(string) { o.signal() },
	})
	o.set(endpoints)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	done := make(chan struct{})
	go func() {
		o.pool.Run(ctx, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			var serving sync.WaitGroup
			serving.Go(func() { o.groups.Serve(ctx, shard, client) })
			serving.Go(func() { o.notices.Serve(ctx, shard, client) })
			serving.Wait()
		})
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return o
}

// issue replaces the operator's certificate.
func (o *operator) issue(t *testing.T, id string) {
	t.Helper()
	certPEM, keyPEM, err := o.authority.IssueClient(pki.Client{ID: id, Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	require.NoError(t, o.identity.Set(certPEM, keyPEM, o.authority.CertificatePEM()))
}

func (o *operator) set(endpoints map[string]string) {
	parsed := map[string]shard.Endpoint{}
	for id, address := range endpoints {
		parsed[id] = shard.Endpoint{Operator: address}
	}
	o.pool.Set(parsed)
}

// signal makes eventually check its condition again.
func (o *operator) signal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// reportedErrors returns the errors that were reported until now.
func (o *operator) reportedErrors() []shard.ErrorEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.errors)
}

// receivedNotices returns the notices that were received until now.
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

// eventually waits for a condition of the caches.
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
		got, _ := o.groups.Reachable(shardID)
		return got == want
	})
}

func (o *operator) expectSettled(t *testing.T, want bool) {
	t.Helper()
	o.eventually(t, fmt.Sprintf("settled of %s is %t", shardID, want), func() bool { return o.notices.Settled(shardID) == want })
}

// expectNotices waits until there are n notices of a state and none of another.
func (o *operator) expectNotices(t *testing.T, n int, state shard.NoticeState) []shard.DeletionNotice {
	t.Helper()
	var list []shard.DeletionNotice
	o.eventually(t, fmt.Sprintf("shard %s has %d notices of state %s", shardID, n, state), func() bool {
		list = o.notices.List(shardID)
		return len(list) == n && !slices.ContainsFunc(list, func(notice shard.DeletionNotice) bool { return notice.State != state })
	})
	return list
}

// expectInstances waits until a group has n instances.
func (o *operator) expectInstances(t *testing.T, key string, n int) shard.Group {
	t.Helper()
	var group shard.Group
	o.eventually(t, fmt.Sprintf("group %s of shard %s has %d instances", key, shardID, n), func() bool {
		group, _ = o.groups.Get(shardID, key)
		return int(group.ActualSize) == n && len(group.ProviderIDs) == n
	})
	return group
}

// scale writes the size of group workers, as a controller would.
func (o *operator) scale(t *testing.T, size int32) shard.Group {
	t.Helper()
	group, err := o.pool.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{GroupSettings: shard.GroupSettings{Template: "worker"}, Size: size})
	require.NoError(t, err)
	o.groups.Observe(shardID, group)
	return group
}

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority(servertest.ClusterID)
	require.NoError(t, err)
	return authority
}
