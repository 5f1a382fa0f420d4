// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// peer is a server that behaves as the protocol allows (docs/protocol.md#watches) but as our
// server does not: watches miss changes, replies are late, calls are rejected.
type peer struct {
	nstancev1.UnimplementedOperatorServiceServer
	// nameless is a server whose certificate names no shard.
	nameless bool
	// events are sent to the watch of groups; nil closes it.
	events chan *nstancev1.GroupEvent
	// errors are sent to the watch of errors; nil closes it.
	errors chan *nstancev1.ErrorEvent
	// instances are sent to the watch of instances; nil closes it.
	instances chan *nstancev1.InstanceEvent

	mu     sync.Mutex
	groups []*nstancev1.GroupStatus
	// err is the error of lists and of the watch of groups.
	err error
	// errorsErr is the error of the watch of errors.
	errorsErr error
	// blockList delays the replies to lists, which contain the groups at the time of
	// the request.
	blockList                    chan struct{}
	lists, watches, errorWatches int

	// drains are the first events of a watch of instances.
	drains []*nstancev1.InstanceEvent
	// instancesErr is the error of the watch of instances.
	instancesErr error
	// version is the version of the groups; "" for a server that has none. changes are the groups that
	// a list of changes has, and removed the keys that it removes.
	version string
	changes []*nstancev1.GroupStatus
	removed []string
	// unrequested: each list is a list of changes.
	unrequested bool

	// since are the versions of which lists have requested the changes, and sent is the number of
	// groups in all replies.
	since []string
	sent  int

	// blockStatus delays the replies to GetConfigStatus.
	blockStatus                     chan struct{}
	instanceWatches, statusRequests int
	// openInstanceWatches counts the open watches of instances, mostInstanceWatches is its
	// maximum.
	openInstanceWatches, mostInstanceWatches int
	// instancesOpened is when the last watch of instances was opened. overlap is how long the
	// previous watch stayed open after that.
	instancesOpened time.Time
	overlap         time.Duration

	// instanceStatus replies to GetInstanceStatus; nil for a server without the method.
	instanceStatus func(id string) error

	// connections are all connections that were opened.
	connections []net.Conn
}

func (p *peer) change(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// awaitList returns after the next list. Another list begins 27 to 33 s later.
func (p *peer) awaitList() {
	count := func() (lists int) {
		p.change(func() { lists = p.lists })
		return lists
	}
	for before := count(); count() == before; {
		<-time.After(100 * time.Millisecond)
	}
}

// requests returns the number of calls of GetConfigStatus.
func (p *peer) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.statusRequests
}

func (p *peer) ListGroups(ctx context.Context, _ *emptypb.Empty) (*nstancev1.ListGroupsResponse, error) {
	p.mu.Lock()
	p.lists++
	reply, err, block := &nstancev1.ListGroupsResponse{Groups: p.groups}, p.err, p.blockList
	if p.version != "" {
		reply.Version = p.version
		if since := metadata.ValueFromIncomingContext(ctx, identifier.GroupsVersionKey); len(since) > 0 {
			p.since = append(p.since, since[0])
			reply.Groups, reply.Changes, reply.Removed = p.changes, true, p.removed
		}
	}
	reply.Changes = reply.Changes || p.unrequested
	p.sent += len(reply.Groups)
	p.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return reply, err
}

func (p *peer) WatchGroups(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.GroupEvent]) error {
	p.mu.Lock()
	p.watches++
	err := p.err
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return send(stream, p.events)
}

func (p *peer) WatchErrors(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.ErrorEvent]) error {
	p.mu.Lock()
	p.errorWatches++
	err := p.errorsErr
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return send(stream, p.errors)
}

func (p *peer) WatchInstances(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.InstanceEvent]) error {
	p.mu.Lock()
	p.instanceWatches++
	p.openInstanceWatches++
	p.mostInstanceWatches = max(p.mostInstanceWatches, p.openInstanceWatches)
	p.instancesOpened = time.Now()
	drains, err := p.drains, p.instancesErr
	p.mu.Unlock()
	defer p.change(func() {
		p.openInstanceWatches--
		p.overlap = time.Since(p.instancesOpened)
	})
	if err != nil {
		return err
	}
	for _, drain := range drains {
		if err := stream.Send(drain); err != nil {
			return err
		}
	}
	return send(stream, p.instances)
}

func (p *peer) GetConfigStatus(ctx context.Context, _ *emptypb.Empty) (*nstancev1.ConfigStatusResponse, error) {
	p.mu.Lock()
	p.statusRequests++
	block := p.blockStatus
	p.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// Some servers do not implement the method.
	return nil, status.Error(codes.Unimplemented, "method GetConfigStatus not implemented")
}

func (p *peer) GetInstanceStatus(_ context.Context, request *nstancev1.GetInstanceStatusRequest) (*nstancev1.InstanceStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.instanceStatus == nil {
		return nil, status.Error(codes.Unimplemented, "method GetInstanceStatus not implemented")
	}
	return &nstancev1.InstanceStatusResponse{}, p.instanceStatus(request.GetInstanceId())
}

// send sends events until the client disconnects or an event is nil.
func send[Event any](stream grpc.ServerStreamingServer[Event], events <-chan *Event) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case event := <-events:
			if event == nil {
				return nil
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

func upsert(key string, size int32) *nstancev1.GroupEvent {
	return &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: &nstancev1.GroupStatus{Key: key, Size: size}}
}

// serve starts p, and returns a client of it.
func (p *peer) serve(t *testing.T) nstancev1.OperatorServiceClient {
	t.Helper()
	p.events, p.errors = make(chan *nstancev1.GroupEvent), make(chan *nstancev1.ErrorEvent)
	p.instances = make(chan *nstancev1.InstanceEvent)
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	nstancev1.RegisterOperatorServiceServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	plain := insecure.NewCredentials()
	if p.nameless {
		plain = namelessCredentials{plain}
	}
	connection, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(plain),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			opened, err := listener.DialContext(ctx)
			p.change(func() { p.connections = append(p.connections, opened) })
			return opened, err
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return nstancev1.NewOperatorServiceClient(connection)
}

// withPeer runs test on a fake clock while g serves shard "a" from p. handled returns the
// calls of the handlers since its last call.
func withPeer(t *testing.T, p *peer, test func(t *testing.T, g *Groups, handled func() []string)) {
	t.Helper()
	withPeerAndOptions(t, p, Options{}, test)
}

func withPeerAndOptions(t *testing.T, p *peer, options Options, test func(t *testing.T, g *Groups, handled func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := p.serve(t)
		g := NewGroups(options)
		var mu sync.Mutex
		var lines []string
		record := func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		}
		g.AddHandler(shard.GroupHandler{
			OnGroup: func(shard, key string) { record(shard + "/" + key) },
			OnShard: record,
			OnError: func(shard string, event shard.ErrorEvent) {
				record(fmt.Sprintf("%s reports %q of group %q", shard, event.Message, event.Group))
			},
		})
		runtest.Start(t, func(ctx context.Context) { g.Serve(ctx, "a", client) })
		synctest.Wait()
		test(t, g, func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := lines
			lines = nil
			return out
		})
	})
}

func expectSizes(t *testing.T, g *Groups, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, group := range g.List("a") {
		got = append(got, fmt.Sprintf("%s=%d", group.Key, group.Size))
	}
	assert.Equal(t, want, got)
}

func TestListAddsWhatTheWatchMissed(t *testing.T) {
	p := &peer{groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}, {Key: "old", Size: 2}}}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		expectSizes(t, g, "old=2", "workers=1")
		handled()
		p.change(func() { p.groups = []*nstancev1.GroupStatus{{Key: "workers", Size: 3}, {Key: "new", Size: 4}} })
		<-time.After(33 * time.Second)
		expectSizes(t, g, "new=4", "workers=3")
		got := handled()
		slices.Sort(got)
		if want := []string{"a/new", "a/old", "a/workers"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
	})
}

func TestEvents(t *testing.T) {
	p := &peer{groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}}}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		if !g.HasSynced("a") {
			t.Error("not synced after a list")
		}
		handled()
		p.events <- upsert("workers", 2)
		p.events <- upsert("workers", 2)
		p.events <- upsert("other", 5)
		expectSizes(t, g, "other=5", "workers=2")
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: &nstancev1.GroupStatus{Key: "other"}}
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: &nstancev1.GroupStatus{Key: "unknown"}}
		p.events <- &nstancev1.GroupEvent{Type: 9, Group: &nstancev1.GroupStatus{Key: "workers", Size: 9}}
		expectSizes(t, g, "workers=2")
		if got, want := handled(), []string{"a/workers", "a/other", "a/other"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
	})
}

func TestLateListDoesNotRevertEventsAndReplies(t *testing.T) {
	p := &peer{groups: []*nstancev1.GroupStatus{{Key: "watched", Size: 1}, {Key: "written", Size: 1}, {Key: "deleted", Size: 1}}}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		block := make(chan struct{})
		p.change(func() { p.blockList = block })
		<-time.After(34 * time.Second)
		// A list is in progress, and the groups of the reply are determined.
		p.events <- upsert("watched", 2)
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: &nstancev1.GroupStatus{Key: "deleted"}}
		g.Observe("a", shard.Group{Key: "written", Size: 2})
		synctest.Wait()
		close(block)
		expectSizes(t, g, "watched=2", "written=2")
		if ok, err := g.Reachable("a"); !ok {
			t.Errorf("not reachable: %v", err)
		}
	})
}

func TestUnchangedShardCallsNoHandler(t *testing.T) {
	p := &peer{groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1, Vars: map[string]string{"a": "1"}, ProviderIds: []string{"x"}}}}
	withPeer(t, p, func(t *testing.T, _ *Groups, handled func() []string) {
		if got, want := handled(), []string{"a/workers", "a"}; !slices.Equal(got, want) {
			t.Errorf("at first handled %v, want %v", got, want)
		}
		<-time.After(24 * time.Hour)
		if got := handled(); got != nil {
			t.Errorf("in a quiet day handled %v", got)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.watches != 1 || p.lists < 2600 || p.lists > 3300 {
			t.Errorf("%d watches and %d lists in a day, want 1 and one list about every 30 s", p.watches, p.lists)
		}
	})
}

// A shard with many groups that do not change is listed every 30 s, and sends all groups every ten
// minutes.
func TestListsOfAQuietShardAreEmpty(t *testing.T) {
	p := &peer{version: "term.1"}
	for n := range 100 {
		p.groups = append(p.groups, &nstancev1.GroupStatus{Key: fmt.Sprintf("group-%02d", n), Size: 1})
	}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		assert.Len(t, handled(), 101, "at first")
		<-time.After(24 * time.Hour)
		assert.Nil(t, handled())
		assert.Len(t, g.List("a"), 100)
		p.mu.Lock()
		defer p.mu.Unlock()
		assert.InDelta(t, 2880, p.lists, 300, "lists")
		assert.LessOrEqual(t, p.sent, 100*(24*6+5), "groups in all replies")
	})
}

// A list of changes adds what the watch has missed, removes what no longer exists, leaves all else, and
// does not revert what has changed since it began.
func TestListsOfChanges(t *testing.T) {
	p := &peer{version: "term.1", groups: []*nstancev1.GroupStatus{{Key: "stays", Size: 1}, {Key: "missed", Size: 1}, {Key: "removed", Size: 1}, {Key: "watched", Size: 1}}}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		<-time.After(3 * time.Minute)
		p.awaitList()
		handled()
		block := make(chan struct{})
		p.change(func() {
			p.since, p.version, p.blockList = nil, "term.2", block
			p.changes = []*nstancev1.GroupStatus{{Key: "missed", Size: 2}, {Key: "new", Size: 1}, {Key: "watched", Size: 1}}
			p.removed = []string{"removed", "never-known"}
		})
		<-time.After(34 * time.Second)
		p.events <- upsert("watched", 3)
		synctest.Wait()
		p.change(func() { p.blockList = nil })
		close(block)
		expectSizes(t, g, "missed=2", "new=1", "stays=1", "watched=3")
		assert.ElementsMatch(t, []string{"a/missed", "a/new", "a/removed", "a/watched"}, handled())
		ok, err := g.Reachable("a")
		assert.True(t, ok, "%v", err)
		p.change(func() { assert.Equal(t, []string{"term.1"}, p.since) })

		// What arrives late, such as the reply to a request, is reverted: lists overlap.
		g.Observe("a", shard.Group{Key: "missed", Size: 1})
		<-time.After(34 * time.Second)
		expectSizes(t, g, "missed=2", "new=1", "stays=1", "watched=1")
		p.change(func() {
			assert.Equal(t, []string{"term.1", "term.1"}, p.since, "versions that are older than a minute")
		})
	})
}

// What cannot be the value of metadata would make the calls fail.
func TestAVersionThatCannotBeSentIsNotUsed(t *testing.T) {
	start := time.Now()
	for version, want := range map[string]string{
		"term.1": "term.1", "": "", "two\nlines": "", "with space": "", "ümlaut": "", strings.Repeat("x", maxVersion+1): "",
	} {
		var v versions
		v.add(version, start, true)
		assert.Equal(t, want, v.known(start.Add(changesOverlap)), "%q", version)
	}
}

// Lists of all groups may be requested all the time.
func TestVersionsAreForgotten(t *testing.T) {
	var v versions
	start := time.Now()
	for second := range 1000 {
		v.add(fmt.Sprint("term.", second), start.Add(time.Duration(second)*time.Second), true)
	}
	assert.LessOrEqual(t, len(v.lists), 62, "for a minute, and the last before it")
	assert.Equal(t, "term.940", v.known(start.Add(1000*time.Second)))
}

// A controller that has to know what does not exist requests all groups.
func TestRelistRequestsAllGroups(t *testing.T) {
	p := &peer{version: "term.1", groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}}}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		<-time.After(3 * time.Minute)
		p.awaitList()
		p.change(func() { p.since, p.groups = nil, nil })
		mark := g.Relist("a")
		synctest.Wait()
		expectSizes(t, g)
		assert.True(t, g.ListedSince("a", mark))
		p.change(func() { assert.Empty(t, p.since) })

		// A list of changes is no such list.
		mark = g.Relist("other")
		<-time.After(34 * time.Second)
		p.change(func() { assert.Len(t, p.since, 1) })
		assert.False(t, g.ListedSince("a", mark))
	})
}

// A list of changes that was not requested does not say which groups exist.
func TestChangesThatWereNotRequestedAreNoList(t *testing.T) {
	p := &peer{version: "term.1", groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}}}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		p.change(func() { p.unrequested, p.groups = true, nil })
		mark := g.Relist("a")
		expectSizes(t, g, "workers=1")
		reachable, err := g.Reachable("a")
		assert.False(t, reachable)
		assert.ErrorContains(t, err, "changes instead of all groups")
		assert.False(t, g.ListedSince("a", mark))

		p.change(func() { p.unrequested = false })
		<-time.After(time.Minute)
		expectSizes(t, g)
		reachable, err = g.Reachable("a")
		assert.True(t, reachable, "%v", err)
		assert.True(t, g.ListedSince("a", mark))
	})
}

// Changes of a list that failed are not lost, and neither are those during an interruption of the watch.
func TestTheListAfterAFailureHasAllGroups(t *testing.T) {
	p := &peer{version: "term.1", groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}}}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		for what, interrupt := range map[string]func(){
			"a list fails": func() {
				p.change(func() { p.err = status.Error(codes.Unavailable, "the storage is away") })
				<-time.After(34 * time.Second)
				p.change(func() { p.err, p.since = nil, nil })
			},
			"the watch is closed": func() {
				p.change(func() { p.since = nil })
				p.events <- nil
			},
		} {
			<-time.After(3 * time.Minute)
			p.awaitList()
			interrupt()
			<-time.After(25 * time.Second)
			synctest.Wait()
			ok, err := g.Reachable("a")
			assert.True(t, ok, "%s: %v", what, err)
			p.change(func() { assert.Empty(t, p.since, what) })
		}
	})
}

func TestErrorsAreRetriedWithBackoffAndTheReasonIsKept(t *testing.T) {
	p := &peer{err: status.Error(codes.Unauthenticated, "certificate expired")}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		<-time.After(10 * time.Minute)
		if ok, err := g.Reachable("a"); ok || shard.Message(err) != "certificate expired" {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
		if got, want := handled(), []string{"a"}; !slices.Equal(got, want) {
			t.Errorf("handled %v, want %v", got, want)
		}
		p.change(func() {
			if p.watches < 20 || p.watches > 100 {
				t.Errorf("%d watches in 10 minutes", p.watches)
			}
			if p.lists < 20 || p.lists > 150 {
				t.Errorf("%d lists in 10 minutes", p.lists)
			}
			p.err = nil
		})
		<-time.After(25 * time.Second)
		if ok, err := g.Reachable("a"); !ok {
			t.Errorf("still not reachable: %v", err)
		}
	})
}

func TestWatchThatTheServerClosesIsOpenedAgain(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		handled()
		p.events <- nil
		synctest.Wait()
		if ok, err := g.Reachable("a"); ok || !shard.IsUnreachable(err) {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
		if !g.HasSynced("a") {
			t.Error("the closed watch makes the cache incomplete")
		}
		<-time.After(time.Second)
		if ok, err := g.Reachable("a"); !ok {
			t.Errorf("not reachable again: %v", err)
		}
	})
}

// The reply to a list that was in progress may be older than the call.
func TestListedSinceNeedsALaterList(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		lists := func() int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.lists
		}
		before := lists()
		mark := g.Relist("a")
		assert.Equal(t, before+1, lists(), "one more list, at once")
		assert.True(t, g.ListedSince("a", mark))

		block := make(chan struct{})
		p.change(func() { p.blockList = block })
		first := g.Relist("a")
		assert.Equal(t, before+2, lists(), "a list is in progress")
		assert.False(t, g.ListedSince("a", first))
		second := g.Relist("a")
		p.change(func() {
			p.blockList = nil
			p.groups = []*nstancev1.GroupStatus{{Key: "late", Size: 1}}
		})
		g.update("a", func(c *groupCache) []string {
			assert.Zero(t, len(c.groups))
			return nil
		})
		close(block)
		assert.Equal(t, before+3, lists(), "another list after it")
		assert.True(t, g.ListedSince("a", first))
		assert.True(t, g.ListedSince("a", second))
		expectSizes(t, g, "late=1")
	})
}

// A list that has failed confirms nothing, and is repeated.
func TestListedSinceNeedsASuccessfulList(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		p.change(func() { p.err = status.Error(codes.Unavailable, "later") })
		mark := g.Relist("a")
		synctest.Wait()
		assert.False(t, g.ListedSince("a", mark))
		p.change(func() { p.err = nil })
		<-time.After(20 * time.Second)
		assert.True(t, g.ListedSince("a", mark))
	})
}

func TestListedSinceOfAShardThatIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{}
		client := p.serve(t)
		g := NewGroups(Options{})
		mark := g.Relist("a")
		assert.False(t, g.ListedSince("a", mark))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			g.Serve(ctx, "a", client)
			close(served)
		}()
		synctest.Wait()
		assert.True(t, g.ListedSince("a", mark))

		// The lists of the next connection continue the numbers.
		cancel()
		<-served
		mark = g.Relist("a")
		assert.False(t, g.ListedSince("a", mark))
		runtest.Start(t, func(ctx context.Context) { g.Serve(ctx, "a", client) })
		synctest.Wait()
		assert.True(t, g.ListedSince("a", mark))
	})
}

// A shard that accepts calls and never replies to them is unreachable after the probe
// interval and the timeout of a list, and reachable again within the interval of retries.
func TestProbeIntervalLimitsHowLongASilentShardSeemsReachable(t *testing.T) {
	for name, test := range map[string]struct {
		interval         time.Duration
		earliest, latest time.Duration
		recovery         time.Duration
	}{
		"by default": {interval: 0, earliest: 37 * time.Second, latest: 43 * time.Second, recovery: 25 * time.Second},
		"longest":    {interval: MaxProbeInterval, earliest: 37 * time.Second, latest: 43 * time.Second, recovery: 25 * time.Second},
		"3 s":        {interval: 3 * time.Second, earliest: 5700 * time.Millisecond, latest: 6300 * time.Millisecond, recovery: 7 * time.Second},
		"shortest":   {interval: MinProbeInterval, earliest: 1900 * time.Millisecond, latest: 2100 * time.Millisecond, recovery: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := &peer{}
			withPeerAndOptions(t, p, Options{ProbeInterval: test.interval}, func(t *testing.T, g *Groups, _ func() []string) {
				// The first list was replied to when the test begins.
				silent := make(chan struct{})
				p.change(func() { p.blockList = silent })
				begin := time.Now()
				<-time.After(test.earliest - time.Millisecond)
				synctest.Wait()
				ok, err := g.Reachable("a")
				assert.True(t, ok, "reachable before %s: %v", test.earliest, err)
				for ok && time.Since(begin) < time.Minute {
					<-time.After(time.Millisecond)
					synctest.Wait()
					ok, _ = g.Reachable("a")
				}
				assert.LessOrEqual(t, time.Since(begin), test.latest, "how long the silent shard seemed reachable")

				<-time.After(10 * time.Minute)
				p.change(func() { p.blockList = nil })
				close(silent)
				<-time.After(test.recovery)
				synctest.Wait()
				ok, err = g.Reachable("a")
				assert.True(t, ok, "reachable %s after the recovery: %v", test.recovery, err)
			})
		})
	}
}

func TestGroupsAreListedAtTheProbeInterval(t *testing.T) {
	p := &peer{}
	withPeerAndOptions(t, p, Options{ProbeInterval: 3 * time.Second}, func(t *testing.T, _ *Groups, handled func() []string) {
		handled()
		<-time.After(time.Hour)
		assert.Empty(t, handled())
		p.change(func() { assert.InDelta(t, time.Hour/(3*time.Second), p.lists, 100) })
	})
}

func TestHandlersReceiveErrorsInOrder(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		// A handler without OnError is ignored.
		g.AddHandler(shard.GroupHandler{})
		handled()
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "out of capacity"}
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "out of capacity"}
		p.errors <- &nstancev1.ErrorEvent{Error: "the configuration is not valid"}
		want := []string{
			`a reports "out of capacity" of group "workers"`,
			`a reports "out of capacity" of group "workers"`,
			`a reports "the configuration is not valid" of group ""`,
		}
		if got := handled(); !slices.Equal(got, want) {
			t.Errorf("handled\n%q, want\n%q", got, want)
		}
	})
}

func TestWatchOfErrorsIsOpenedAgain(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		handled()
		p.errors <- nil
		<-time.After(time.Second)
		p.errors <- &nstancev1.ErrorEvent{Error: "received"}
		if got, want := handled(), []string{`a reports "received" of group ""`}; !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q", got, want)
		}
		p.change(func() {
			if p.errorWatches != 2 || p.watches != 1 {
				t.Errorf("%d watches of errors and %d of groups, want 2 and 1", p.errorWatches, p.watches)
			}
		})
		if ok, err := g.Reachable("a"); !ok || err != nil {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
	})
}

func TestUnimplementedWatchOfErrorsIsRetriedRarely(t *testing.T) {
	p := &peer{errorsErr: status.Error(codes.Unimplemented, "method WatchErrors not implemented")}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		expectReachable := func(when string) {
			t.Helper()
			synctest.Wait()
			if ok, err := g.Reachable("a"); !ok || err != nil || !g.HasSynced("a") {
				t.Errorf("%s: reachable %t, reason %v, synced %t", when, ok, err, g.HasSynced("a"))
			}
		}
		expectReachable("at first")
		handled()
		<-time.After(time.Hour)
		expectReachable("after an hour")
		if got := handled(); got != nil {
			t.Errorf("handled %q", got)
		}
		p.change(func() {
			if p.errorWatches < 12 || p.errorWatches > 13 {
				t.Errorf("%d watches of errors in an hour, want one every 5 minutes", p.errorWatches)
			}
			p.errorsErr = nil
		})
		// The server was replaced by a server that implements the method.
		<-time.After(5 * time.Minute)
		p.errors <- &nstancev1.ErrorEvent{Error: "received"}
		if got, want := handled(), []string{`a reports "received" of group ""`}; !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q", got, want)
		}
	})
}

func TestRejectedWatchOfErrorsIsRetriedWithBackoff(t *testing.T) {
	p := &peer{errorsErr: status.Error(codes.PermissionDenied, "not for operators")}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		handled()
		<-time.After(10 * time.Minute)
		p.change(func() {
			if p.errorWatches < 20 || p.errorWatches > 100 {
				t.Errorf("%d watches of errors in 10 minutes", p.errorWatches)
			}
		})
		if ok, err := g.Reachable("a"); !ok || err != nil {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
		if got := handled(); got != nil {
			t.Errorf("handled %q", got)
		}
	})
}
