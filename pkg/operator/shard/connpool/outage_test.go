// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// quietServer is a server whose state never changes (docs/protocol.md#watches), so that a dead
// connection to it is the hardest to detect. It has gRPC's default policy for pings.
type quietServer struct {
	nstancev1.UnimplementedOperatorServiceServer
	groups         []*nstancev1.GroupStatus
	lists, watches atomic.Int32
	// drains are the first events of a watch of instances, after beforeDrains.
	drains          []*nstancev1.InstanceEvent
	beforeDrains    func()
	instanceWatches atomic.Int32
}

func (s *quietServer) ListGroups(context.Context, *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	s.lists.Add(1)
	return &nstancev1.ListGroupsResponse{Groups: s.groups}, nil
}

func (s *quietServer) WatchGroups(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	s.watches.Add(1)
	<-stream.Context().Done()
	return nil
}

func (s *quietServer) WatchInstances(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	s.instanceWatches.Add(1)
	if s.beforeDrains != nil {
		s.beforeDrains()
	}
	for _, drain := range s.drains {
		if err := stream.Send(drain); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// bubble is a pool with the informers and their real timing, on a fake clock and over a
// network in memory.
type bubble struct {
	network *network
	servers map[string]*quietServer
	groups  *informer.Groups
	notices *informer.Notices
	// shardChanges contains a token after OnShard.
	shardChanges chan string
}

// setup is the initial state of a bubble.
type setup struct {
	// shards are served at addresses of the same name.
	shards []string
	// lossy are the shards whose packets are lost from the start.
	lossy []string
	// silent are further shards that accept connections but never send data.
	silent []string
	// Each shard has groups and drains.
	groups []*nstancev1.GroupStatus
	drains []*nstancev1.InstanceEvent
}

func inBubble(t *testing.T, s setup, test func(t *testing.T, b *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{
			network:      newNetwork(),
			servers:      map[string]*quietServer{},
			groups:       informer.NewGroups(informer.Options{}),
			notices:      informer.NewNotices(),
			shardChanges: make(chan string, 1000),
		}
		b.groups.AddHandler(shard.GroupHandler{OnShard: func(shard string) { b.shardChanges <- shard }})
		p := New(insecureOptions)
		p.options = append(p.options, grpc.WithContextDialer(b.network.dial))
		endpoints := map[string]shard.Endpoint{}
		for _, id := range s.shards {
			b.servers[id] = &quietServer{groups: s.groups, drains: s.drains}
			server := grpc.NewServer()
			nstancev1.RegisterOperatorServiceServer(server, b.servers[id])
			go func() { _ = server.Serve(b.network.listen(id)) }()
			t.Cleanup(server.Stop)
			endpoints[id] = shard.Endpoint{Operator: id}
		}
		for _, id := range s.lossy {
			b.network.lose(id, true)
		}
		for _, id := range s.silent {
			endpoints[id] = shard.Endpoint{Operator: id}
			listener := b.network.listen(id)
			t.Cleanup(func() { _ = listener.Close() })
			go acceptSilently(listener)
		}
		p.Set(endpoints)
		runtest.Start(t, func(ctx context.Context) { p.Run(ctx, b.serve) })
		test(t, b)
	})
}

// acceptSilently accepts connections and never replies.
func acceptSilently(listener net.Listener) {
	for {
		opened, err := listener.Accept()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(io.Discard, opened) }()
	}
}

// serve runs both informers, as the operator does.
func (b *bubble) serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	var serving sync.WaitGroup
	serving.Go(func() { b.groups.Serve(ctx, shardID, client) })
	serving.Go(func() { b.notices.Serve(ctx, shardID, client) })
	serving.Wait()
}

// reachable waits until the shard is reachable, or is not, and returns the time that it took.
func (b *bubble) reachable(t *testing.T, shard string, want bool, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	deadline := time.After(limit)
	for {
		if got, _ := b.groups.Reachable(shard); got == want {
			return time.Since(start)
		}
		select {
		case <-b.shardChanges:
		case <-deadline:
			_, err := b.groups.Reachable(shard)
			t.Fatalf("shard %q: reachable is still not %t after %v (%v)", shard, want, limit, err)
		}
	}
}

func TestRecoveryFromLostPackets(t *testing.T) {
	inBubble(t, setup{shards: []string{"a", "b"}}, func(t *testing.T, b *bubble) {
		b.reachable(t, "a", true, 10*time.Second)
		b.reachable(t, "b", true, 10*time.Second)
		var detected, recovered []time.Duration
		// Outages start at many moments between two lists, last up to a quarter of an
		// hour, and stop at many moments of an attempt to connect.
		for i := range time.Duration(40) {
			<-time.After(i * 997 * time.Millisecond)
			b.network.lose("a", true)
			detected = append(detected, b.reachable(t, "a", false, 45*time.Second))
			if !b.groups.HasSynced("a") {
				t.Fatal("an outage makes the cache incomplete")
			}
			<-time.After(i * 23_013 * time.Millisecond)
			b.network.lose("a", false)
			recovered = append(recovered, b.reachable(t, "a", true, 10*time.Second))
			if ok, err := b.groups.Reachable("b"); !ok {
				t.Fatalf("the outage of shard a affected shard b: %v", err)
			}
		}
		t.Logf("detected after at most %v, recovered after at most %v", slices.Max(detected), slices.Max(recovered))
	})
}

// A dead connection must not look like a server without draining instances, not even right
// after the opening of the watch.
func TestLostPacketsDropNoDrain(t *testing.T) {
	drains := []*nstancev1.InstanceEvent{{InstanceId: "i", Group: "workers", Status: string(shard.Draining)}}
	inBubble(t, setup{shards: []string{"a"}, drains: drains}, func(t *testing.T, b *bubble) {
		expect := func(when string, settled bool) shard.DeletionNotice {
			t.Helper()
			synctest.Wait()
			notice, ok := b.notices.Get("a", "i")
			if got := b.notices.Settled("a"); !ok || got != settled {
				t.Errorf("%s: the drain is cached: %t, settled: %t", when, ok, got)
			}
			return notice
		}
		<-time.After(5 * time.Second)
		before := expect("at first", true)
		for i := range time.Duration(20) {
			<-time.After(i * 997 * time.Millisecond)
			b.network.lose("a", true)
			<-time.After(31 * time.Second)
			expect("when the loss is detected", false)

			// The connection recovers for a moment, and the watch is opened.
			watches := b.servers["a"].instanceWatches.Load()
			b.servers["a"].beforeDrains = func() { b.network.lose("a", true) }
			b.network.lose("a", false)
			for range 60 {
				<-time.After(time.Second)
				expect("after the watch opened", false)
			}
			if b.servers["a"].instanceWatches.Load() == watches {
				t.Fatal("the watch was not opened")
			}

			b.servers["a"].beforeDrains = nil
			b.network.lose("a", false)
			<-time.After(20 * time.Second)
			after := expect("afterwards", true)
			if after.Announced <= before.Announced {
				t.Errorf("announced %d after %d", after.Announced, before.Announced)
			}
			before = after
		}
	})
}

func TestUnreachableShardDelaysNoOther(t *testing.T) {
	inBubble(t, setup{shards: []string{"a", "b", "c"}, lossy: []string{"a"}, silent: []string{"d"}}, func(t *testing.T, b *bubble) {
		for _, id := range []string{"b", "c"} {
			if took := b.reachable(t, id, true, 10*time.Second); took > time.Second {
				t.Errorf("shard %q took %v", id, took)
			}
		}
		<-time.After(time.Minute)
		for _, id := range []string{"a", "d"} {
			if _, err := b.groups.Reachable(id); !shard.IsUnreachable(err) {
				t.Errorf("the reason for shard %q is %v", id, err)
			}
			if b.groups.HasSynced(id) {
				t.Errorf("shard %q, which was never reachable, has synced", id)
			}
		}
		b.network.lose("a", false)
		b.reachable(t, "a", true, 10*time.Second)
	})
}

func TestKeepaliveConformsToTheDefaultPolicy(t *testing.T) {
	inBubble(t, setup{shards: []string{"a"}}, func(t *testing.T, b *bubble) {
		b.reachable(t, "a", true, 10*time.Second)
		<-time.After(24 * time.Hour)
		if got := b.servers["a"].watches.Load(); got != 1 {
			t.Errorf("the watch was opened %d times within a quiet day, want once", got)
		}
		if got := b.servers["a"].instanceWatches.Load(); got < 130 || got > 160 {
			t.Errorf("the watch of instances was opened %d times, want once about every 10 minutes", got)
		}
		if got := b.servers["a"].lists.Load(); got < 2600 || got > 3300 {
			t.Errorf("%d lists within a day, want one about every 30 s", got)
		}
	})
}

func TestShardWithManyGroupsAndInstances(t *testing.T) {
	groups := make([]*nstancev1.GroupStatus, shard.MaxGroups)
	size := 0
	for i := range groups {
		groups[i] = &nstancev1.GroupStatus{
			Key: fmt.Sprintf("group-%d", i), Tenant: "default", Template: "worker", Size: 10,
			Vars: map[string]string{"note": strings.Repeat("x", 2000)},
		}
		for j := range 10 {
			groups[i].ProviderIds = append(groups[i].ProviderIds, fmt.Sprintf("aws:///us-west-2a/i-%017d", i*10+j))
		}
		size += proto.Size(groups[i])
	}
	const defaultLimit = 4 << 20
	if size < defaultLimit {
		t.Fatalf("the list has %d bytes, too few to show anything", size)
	}
	inBubble(t, setup{shards: []string{"a"}, groups: groups}, func(t *testing.T, b *bubble) {
		b.reachable(t, "a", true, 10*time.Second)
		if got := len(b.groups.List("a")); got != len(groups) {
			t.Errorf("%d groups, want %d", got, len(groups))
		}
	})
}

// A small message that takes much memory is not decoded, and its groups are unknown.
func TestShardWhoseListTakesTooMuchMemory(t *testing.T) {
	groups := make([]*nstancev1.GroupStatus, 300_000)
	for i := range groups {
		groups[i] = &nstancev1.GroupStatus{}
	}
	inBubble(t, setup{shards: []string{"a"}, groups: groups}, func(t *testing.T, b *bubble) {
		<-time.After(time.Minute)
		reachable, reason := b.groups.Reachable("a")
		if reachable || shard.Exceeded(reason) != shard.LimitMessage {
			t.Errorf("reachable %t with reason %v", reachable, reason)
		}
		if b.groups.HasSynced("a") {
			t.Error("the groups are known")
		}
	})
}
