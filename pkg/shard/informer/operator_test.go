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

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	"nstance.dev/operator/pkg/shard/pool"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shardID is the shard that most of a test is about.
const shardID = "a"

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

// operator is the shard side of an operator: identity, pool and informers with
// their real timing, over TCP and mutual TLS.
type operator struct {
	authority *pki.Authority
	identity  *identity.Identity
	pool      *pool.Pool
	groups    *informer.Groups
	instances *informer.Instances

	mu sync.Mutex
	// changed is closed and replaced whenever a handler was called.
	changed chan struct{}
	// told are the calls of OnGroup.
	told []string
	// failed are the calls of OnError.
	failed []shard.ErrorEvent
	// noticed are the notices at the calls of OnInstance, without those that went
	// away.
	noticed []shard.Notice
}

func startOperator(t *testing.T, endpoints map[string]string) *operator {
	t.Helper()
	o := &operator{authority: newAuthority(t), identity: &identity.Identity{}, groups: informer.NewGroups(), instances: informer.NewInstances(), changed: make(chan struct{})}
	o.issue(t, "first")
	o.pool = pool.New(pool.Options{Credentials: o.identity.TransportCredentials()})
	o.groups.AddHandler(informer.Handler{
		OnGroup: func(shard, key string) { o.tell(shard + "/" + key) },
		OnShard: func(string) { o.tell("") },
		OnError: func(_ string, event shard.ErrorEvent) {
			o.mu.Lock()
			o.failed = append(o.failed, event)
			o.mu.Unlock()
			o.tell("")
		},
	})
	o.instances.AddHandler(informer.InstanceHandler{
		OnInstance: func(shard, id string) {
			if notice, ok := o.instances.Get(shard, id); ok {
				o.mu.Lock()
				o.noticed = append(o.noticed, notice)
				o.mu.Unlock()
			}
			o.tell("")
		},
		OnShard: func(string) { o.tell("") },
	})
	o.set(endpoints)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	done := make(chan struct{})
	go func() {
		o.pool.Run(ctx, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			var serving sync.WaitGroup
			serving.Go(func() { o.groups.Serve(ctx, shard, client) })
			serving.Go(func() { o.instances.Serve(ctx, shard, client) })
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

// issue gives the operator a new certificate.
func (o *operator) issue(t *testing.T, id string) {
	t.Helper()
	certPEM, keyPEM, err := o.authority.IssueClient(pki.Client{ID: id, Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.identity.Set(certPEM, keyPEM, o.authority.CertificatePEM()); err != nil {
		t.Fatal(err)
	}
}

func (o *operator) set(endpoints map[string]string) {
	parsed := map[string]shard.Endpoint{}
	for id, address := range endpoints {
		parsed[id] = shard.Endpoint{Operator: address}
	}
	o.pool.Set(parsed)
}

func (o *operator) tell(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if line != "" {
		o.told = append(o.told, line)
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

// failures are the errors that were reported until now.
func (o *operator) failures() []shard.ErrorEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.failed)
}

// notices are what OnInstance was called for until now.
func (o *operator) notices() []shard.Notice {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.noticed)
}

func (o *operator) next() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// until waits for a condition on what the informer knows.
func (o *operator) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		next := o.next()
		if condition() {
			return
		}
		select {
		case <-next:
		case <-deadline:
			t.Fatalf("after %v still not: %s", patience, what)
		}
	}
}

func (o *operator) untilReachable(t *testing.T, want bool) {
	t.Helper()
	o.until(t, fmt.Sprintf("reachable of %s is %t", shardID, want), func() bool {
		got, _ := o.groups.Reachable(shardID)
		return got == want
	})
}

func (o *operator) untilSettled(t *testing.T, want bool) {
	t.Helper()
	o.until(t, fmt.Sprintf("settled of %s is %t", shardID, want), func() bool { return o.instances.Settled(shardID) == want })
}

// untilNotices waits until there are n notices of a state and none of another.
func (o *operator) untilNotices(t *testing.T, n int, state shard.NoticeState) []shard.Notice {
	t.Helper()
	var list []shard.Notice
	o.until(t, fmt.Sprintf("shard %s has %d notices of state %s", shardID, n, state), func() bool {
		list = o.instances.List(shardID)
		return len(list) == n && !slices.ContainsFunc(list, func(notice shard.Notice) bool { return notice.State != state })
	})
	return list
}

// untilInstances waits until a group has n instances.
func (o *operator) untilInstances(t *testing.T, key string, n int) shard.Group {
	t.Helper()
	var group shard.Group
	o.until(t, fmt.Sprintf("group %s of shard %s has %d instances", key, shardID, n), func() bool {
		group, _ = o.groups.Get(shardID, key)
		return int(group.ActualSize) == n && len(group.ProviderIDs) == n
	})
	return group
}

// scale writes the size of group workers, as a controller would.
func (o *operator) scale(t *testing.T, size int32) shard.Group {
	t.Helper()
	group, err := o.pool.UpsertGroup(t.Context(), shardID, "workers", shard.GroupConfig{Template: "worker", Size: size})
	if err != nil {
		t.Fatal(err)
	}
	o.groups.Observe(shardID, group)
	return group
}

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority(servertest.ClusterID)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}
