// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func endpoint(address string) shard.Endpoint {
	return shard.Endpoint{Operator: address}
}

// recorder has a ServeFunc that records its start and its end.
type recorder struct {
	mu    sync.Mutex
	lines []string
	// block prevents serve from returning while it is open. It may be nil.
	block chan struct{}
}

func (r *recorder) serve(ctx context.Context, shardID string, _ nstancev1.OperatorServiceClient) {
	r.record("start " + shardID)
	<-ctx.Done()
	if r.block != nil {
		<-r.block
	}
	cause := "other"
	if errors.Is(context.Cause(ctx), shard.ErrRemoved) {
		cause = "removed"
	}
	r.record("stop " + shardID + " " + cause)
}

func (r *recorder) record(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// expect waits until all goroutines are blocked, and compares the lines recorded
// since the last call, in any order.
func (r *recorder) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.lines)
	slices.Sort(want)
	assert.Equal(t, want, r.lines, what)
	r.lines = nil
}

// insecureOptions are options of a pool without TLS.
var insecureOptions = Options{
	Credentials: func(string) credentials.TransportCredentials { return insecure.NewCredentials() },
}

func TestRunFollowsTheEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(insecureOptions)
		p.Set(map[string]shard.Endpoint{"a": endpoint("a:1")})
		r := &recorder{}
		returned := false
		stop := runtest.Start(t, func(ctx context.Context) {
			p.Run(ctx, r.serve)
			returned = true
		})
		r.expect(t, "set before Run", "start a")

		p.Set(map[string]shard.Endpoint{"a": endpoint("a:1"), "b": endpoint("b:1")})
		r.expect(t, "a shard is added", "start b")

		p.Set(map[string]shard.Endpoint{"a": {Operator: "a:1", Registration: "a:2"}, "b": endpoint("b:1")})
		r.expect(t, "another registration address")

		p.Set(map[string]shard.Endpoint{"a": endpoint("a:3"), "b": endpoint("b:1")})
		r.expect(t, "another address", "stop a other", "start a")

		p.Set(map[string]shard.Endpoint{"b": endpoint("b:1")})
		r.expect(t, "a shard is removed", "stop a removed")

		r.block = make(chan struct{})
		p.Set(nil)
		p.Set(map[string]shard.Endpoint{"b": endpoint("b:1")})
		p.Set(map[string]shard.Endpoint{})
		r.expect(t, "removed, but still busy")
		p.Set(map[string]shard.Endpoint{"b": endpoint("b:1")})
		r.expect(t, "back, but the previous connection is still busy")
		if _, err := p.client("b"); !shard.IsUnreachable(err) {
			t.Errorf("a call would use the previous connection: got error %v", err)
		}
		close(r.block)
		r.expect(t, "the previous connection is done", "stop b removed", "start b")

		r.block = make(chan struct{})
		go stop()
		r.expect(t, "stopped, but a shard is still busy")
		if returned {
			t.Error("Run returned before serve did")
		}
		close(r.block)
		r.expect(t, "stopped", "stop b other")
		if !returned {
			t.Error("Run did not return")
		}
		if p.mu.Lock(); len(p.connections) > 0 {
			t.Error("a connection is left")
		}
		p.mu.Unlock()
	})
}

// A connection to the former address of a shard is used no more, also before Run has
// closed it: another server may have it now.
func TestNoCallUsesTheFormerAddress(t *testing.T) {
	p := New(insecureOptions)
	p.Set(map[string]shard.Endpoint{"a": endpoint("a:1")})
	p.connections["a"] = &connection{address: "a:1", ctx: t.Context()}
	_, err := p.client("a")
	require.NoError(t, err)
	p.Set(map[string]shard.Endpoint{"a": endpoint("a:3")})
	_, err = p.client("a")
	assert.True(t, shard.IsUnreachable(err), "%v", err)
}

func TestHandlersReceiveAddedAndRemovedShards(t *testing.T) {
	p := New(insecureOptions)
	var handled []string
	p.AddHandler(func(shard string) { handled = append(handled, shard) })
	expect := func(what string, shards, want []string) {
		t.Helper()
		if got := p.Shards(); !slices.Equal(got, shards) {
			t.Errorf("%s: shards %v, want %v", what, got, shards)
		}
		for _, id := range []string{"a", "b", "c"} {
			if got, want := p.Has(id), slices.Contains(shards, id); got != want {
				t.Errorf("%s: Has(%q) = %t, want %t", what, id, got, want)
			}
		}
		if !slices.Equal(handled, want) {
			t.Errorf("%s: handled %v, want %v", what, handled, want)
		}
		handled = nil
	}
	expect("new", nil, nil)
	endpoints := map[string]shard.Endpoint{"c": endpoint("c:1"), "a": endpoint("a:1")}
	p.Set(endpoints)
	expect("two added", []string{"a", "c"}, []string{"a", "c"})
	delete(endpoints, "a")
	expect("the caller's map is its own", []string{"a", "c"}, nil)
	p.Set(map[string]shard.Endpoint{"b": endpoint("b:1"), "c": endpoint("c:2")})
	expect("one replaced, one moved", []string{"b", "c"}, []string{"a", "b"})
	p.Set(nil)
	expect("none", nil, []string{"b", "c"})
}
