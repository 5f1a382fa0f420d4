// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// namelessCredentials are the credentials of a connection to a server that names no shard.
type namelessCredentials struct {
	credentials.TransportCredentials
}

func (c namelessCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, _, err := c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	return secured, conninfo.New(credentials.TLSInfo{}, "10.0.0.2:8993"), err
}

func (c namelessCredentials) Clone() credentials.TransportCredentials { return c }

// replace changes p and closes its connections, as if another server had the address.
func (p *peer) replace(change func()) {
	p.change(func() {
		change()
		_ = p.connections[len(p.connections)-1].Close()
	})
}

// reported returns a group without the extension instances.
func reported(key string, providerIDs ...string) *nstancev1.GroupStatus {
	return &nstancev1.GroupStatus{Key: key, Size: int32(len(providerIDs)), ActualSize: int32(len(providerIDs)), ProviderIds: providerIDs}
}

func expectWrongServer(t *testing.T, g *Groups, unverified string) {
	t.Helper()
	synctest.Wait()
	reachable, err := g.Reachable("a")
	if reachable || !shard.IsWrongServer(err) {
		t.Errorf("reachable %t, reason %v", reachable, err)
		return
	}
	assert.Equal(t, unverified, shard.Message(err))
}

func TestServerThatNamesNoShardIsVerifiedByItsList(t *testing.T) {
	known := func(known Known) func() map[string]Known {
		return func() map[string]Known { return map[string]Known{"a": known, "b": {ProviderIDs: []string{"b1", "b2"}}} }
	}
	for name, test := range map[string]struct {
		known      Known
		list       []*nstancev1.GroupStatus
		unverified string
	}{
		"nothing is known of the shard":     {list: []*nstancev1.GroupStatus{reported("workers", "x")}},
		"nothing is known, nothing listed":  {},
		"one of the known instances":        {known: Known{ProviderIDs: []string{"a1", "a2", "a3"}}, list: []*nstancev1.GroupStatus{reported("empty"), reported("workers", "a9", "a2")}},
		"another one":                       {known: Known{ProviderIDs: []string{"a1", "a2"}}, list: []*nstancev1.GroupStatus{reported("workers", "x")}, unverified: "the server at 10.0.0.2:8993 names no shard and has none of the 2 known instances of the shard; confirm it"},
		"no instance":                       {known: Known{ProviderIDs: []string{"a1"}}, list: []*nstancev1.GroupStatus{reported("workers")}, unverified: "the server at 10.0.0.2:8993 names no shard and has none of the 1 known instances of the shard; confirm it"},
		"no group":                          {known: Known{ProviderIDs: []string{"a1"}}, unverified: "the server at 10.0.0.2:8993 names no shard and has none of the 1 known instances of the shard; confirm it"},
		"nothing known, but of another one": {list: []*nstancev1.GroupStatus{reported("workers", "b2")}, unverified: `the server at 10.0.0.2:8993 names no shard and has instances of shard "b"; confirm it`},
	} {
		t.Run(name, func(t *testing.T) {
			p := &peer{nameless: true, groups: test.list}
			confirmed := func(shard, address string) (bool, string) {
				assert.Equal(t, "a at 10.0.0.2:8993", shard+" at "+address)
				return false, "confirm it"
			}
			withPeerAndOptions(t, p, Options{KnownInstances: known(test.known), Confirmed: confirmed}, func(t *testing.T, g *Groups, handled func() []string) {
				<-time.After(5 * time.Minute)
				if test.unverified == "" {
					if reachable, err := g.Reachable("a"); !reachable || !g.HasSynced("a") || len(g.List("a")) != len(test.list) {
						t.Errorf("reachable %t, reason %v, synced %t, groups %+v", reachable, err, g.HasSynced("a"), g.List("a"))
					}
					return
				}
				expectWrongServer(t, g, test.unverified)
				if g.HasSynced("a") || len(g.List("a")) > 0 {
					t.Errorf("synced %t, groups %+v", g.HasSynced("a"), g.List("a"))
				}
				assert.Equal(t, []string{"a"}, handled())
			})
		})
	}
}

// A server that does not reply to a query may have the instance.
func TestServerThatDoesNotReplyToAQueryIsNotAWrongServer(t *testing.T) {
	p := &peer{nameless: true, instanceStatus: func(string) error { return status.Error(codes.Unavailable, "overloaded") }}
	known := func() map[string]Known { return map[string]Known{"a": {OnDemand: []string{"knd1"}}} }
	withPeerAndOptions(t, p, Options{KnownInstances: known}, func(t *testing.T, g *Groups, _ func() []string) {
		<-time.After(5 * time.Minute)
		synctest.Wait()
		reachable, err := g.Reachable("a")
		if reachable || shard.IsWrongServer(err) || g.HasSynced("a") {
			t.Errorf("without a reply: reachable %t, reason %v, synced %t", reachable, err, g.HasSynced("a"))
		}
		p.change(func() { p.instanceStatus = func(string) error { return nil } })
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if reachable, err := g.Reachable("a"); !reachable || !g.HasSynced("a") {
			t.Errorf("with the instance: reachable %t, reason %v, synced %t", reachable, err, g.HasSynced("a"))
		}
	})
}

// redirectedClient replies to queries for the server of a connection.
type redirectedClient struct {
	nstancev1.OperatorServiceClient
	server *conninfo.Info
}

func (c *redirectedClient) GetInstanceStatus(_ context.Context, _ *nstancev1.GetInstanceStatusRequest, options ...grpc.CallOption) (*nstancev1.InstanceStatusResponse, error) {
	for _, option := range options {
		if server, ok := option.(grpc.PeerCallOption); ok {
			server.PeerAddr.AuthInfo = c.server
		}
	}
	return &nstancev1.InstanceStatusResponse{}, nil
}

// The connection may be lost between the list and the query: then the server of the shard has
// the instance, and the list is of another server.
func TestReplyOfAnotherServerVerifiesNothing(t *testing.T) {
	listed, next := conninfo.New(credentials.TLSInfo{}, "10.0.0.2:8993"), conninfo.New(credentials.TLSInfo{}, "10.0.0.1:8993")
	g := NewGroups(Options{KnownInstances: func() map[string]Known { return map[string]Known{"a": {OnDemand: []string{"knd1"}}} }})
	reader := &groupReader{groups: g, shard: "a", client: &redirectedClient{server: next}}
	err := reader.verify(t.Context(), listed, nil)
	assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	assert.Nil(t, listed.Rejected(), "the server was not asked")
	reader.client = &redirectedClient{server: listed}
	assert.NoError(t, reader.verify(t.Context(), listed, nil))
}

// After the first list, the cache is newer than the Kubernetes objects, which are written from
// it.
func TestCacheIsNewerThanKubernetesObjects(t *testing.T) {
	p := &peer{nameless: true, groups: []*nstancev1.GroupStatus{reported("workers", "a1", "a2")}}
	known := func() map[string]Known { return map[string]Known{"a": {ProviderIDs: []string{"a1"}}} }
	withPeerAndOptions(t, p, Options{KnownInstances: known}, func(t *testing.T, g *Groups, _ func() []string) {
		<-time.After(time.Minute)
		p.replace(func() { p.groups = []*nstancev1.GroupStatus{reported("workers", "a2")} })
		<-time.After(time.Minute)
		if reachable, err := g.Reachable("a"); !reachable {
			t.Errorf("with an instance of the cache: not reachable: %v", err)
		}
		p.replace(func() { p.groups = []*nstancev1.GroupStatus{reported("workers", "a1")} })
		<-time.After(time.Minute)
		expectWrongServer(t, g, "the server at 10.0.0.2:8993 names no shard and has none of the 1 known instances of the shard")
	})
}

// A shard that was scaled to zero has no instances to compare, although the objects may be
// older.
func TestEmptyShardIsAcceptedAgain(t *testing.T) {
	p := &peer{nameless: true, groups: []*nstancev1.GroupStatus{reported("workers", "a1")}}
	known := func() map[string]Known { return map[string]Known{"a": {ProviderIDs: []string{"a1"}}} }
	withPeerAndOptions(t, p, Options{KnownInstances: known}, func(t *testing.T, g *Groups, _ func() []string) {
		<-time.After(time.Minute)
		p.change(func() { p.groups = []*nstancev1.GroupStatus{reported("workers")} })
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: reported("workers")}
		<-time.After(time.Minute)
		for _, when := range []string{"on the same connection", "on the next one"} {
			if reachable, err := g.Reachable("a"); !reachable {
				t.Errorf("%s: not reachable: %v", when, err)
			}
			p.replace(func() {})
			<-time.After(time.Minute)
		}
	})
}

func TestEventsBeforeTheVerificationAreIgnored(t *testing.T) {
	p := &peer{nameless: true, groups: []*nstancev1.GroupStatus{reported("workers", "a1", "a2")}}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		<-time.After(time.Minute)
		expectSizes(t, g, "workers=2")
		handled()
		// The list of the other server is late; its watch is not.
		block := make(chan struct{})
		p.replace(func() { p.groups, p.blockList = []*nstancev1.GroupStatus{reported("other", "b1")}, block })
		<-time.After(5 * time.Second)
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: reported("other", "b1")}
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_DELETE, Group: reported("workers")}
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: reported("workers", "b2")}
		expectSizes(t, g, "workers=2")
		close(block)
		p.change(func() { p.blockList = nil })
		expectSizes(t, g, "workers=2")
		expectWrongServer(t, g, "the server at 10.0.0.2:8993 names no shard and has none of the 2 known instances of the shard")
		assert.Equal(t, []string{"a", "a"}, handled(), "the connection was lost, and then the server was wrong")

		// The server of the shard has changed a group before its list arrives.
		block = make(chan struct{})
		p.replace(func() { p.groups, p.blockList = []*nstancev1.GroupStatus{reported("workers", "a1")}, block })
		<-time.After(5 * time.Second)
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: reported("workers", "a1", "a2", "a3")}
		synctest.Wait()
		before := 0
		p.change(func() {
			p.groups, p.blockList = []*nstancev1.GroupStatus{reported("workers", "a1", "a2", "a3")}, nil
			before = p.lists
		})
		close(block)
		expectSizes(t, g, "workers=3")
		p.change(func() {
			if p.lists <= before || p.lists > before+2 {
				t.Errorf("%d lists right after the verification, want 1, and 1 for the opening before it", p.lists-before)
			}
		})
		if reachable, err := g.Reachable("a"); !reachable {
			t.Errorf("not reachable: %v", err)
		}
		p.events <- &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: reported("workers", "a1")}
		expectSizes(t, g, "workers=1")
	})
}

// The notices of another server neither start nor withdraw a drain.
func TestNoticesOfAServerThatIsNotVerifiedAreIgnored(t *testing.T) {
	p := &peer{nameless: true, groups: []*nstancev1.GroupStatus{reported("workers", "a1")}, drains: drains("i1")}
	synctest.Test(t, func(t *testing.T) {
		client := p.serve(t)
		confirmed := false
		var mu sync.Mutex
		groups, notices := NewGroups(Options{Confirmed: func(string, string) (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return confirmed, ""
		}}), NewNotices()
		runtest.Start(t, func(ctx context.Context) { groups.Serve(ctx, "a", client) },
			func(ctx context.Context) { notices.Serve(ctx, "a", client) })
		expect := func(when string, settled bool, ids ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, notice := range notices.List("a") {
				got = append(got, notice.InstanceID)
			}
			assert.Equal(t, ids, got, when)
			assert.Equal(t, settled, notices.Settled("a"), "%s: settled", when)
		}
		<-time.After(time.Minute)
		expect("the server of the shard", true, "i1")
		session := notices.Session("a")

		p.replace(func() { p.groups, p.drains = []*nstancev1.GroupStatus{reported("workers", "b1")}, drains("i2") })
		<-time.After(5 * time.Second)
		p.instances <- event("i1", shard.Deleted)
		<-time.After(5 * time.Minute)
		expect("another server", false, "i1")
		assert.Equal(t, session, notices.Session("a"))

		mu.Lock()
		confirmed = true
		mu.Unlock()
		<-time.After(time.Minute)
		expect("the other server is confirmed", true, "i2")
	})
}

// changesClient is a client of a server that names no shard. The server sends changes to a client that
// knows a version.
type changesClient struct {
	nstancev1.OperatorServiceClient
	server *conninfo.Info
	// known are the versions that the calls of ListGroups have named.
	known []string
}

func (c *changesClient) ListGroups(ctx context.Context, _ *emptypb.Empty, options ...grpc.CallOption) (*nstancev1.ListGroupsResponse, error) {
	for _, option := range options {
		if server, ok := option.(grpc.PeerCallOption); ok {
			server.PeerAddr.AuthInfo = c.server
		}
	}
	sent, _ := metadata.FromOutgoingContext(ctx)
	version := strings.Join(sent.Get(identifier.GroupsVersionKey), " ")
	c.known = append(c.known, version)
	if version != "" {
		return &nstancev1.ListGroupsResponse{Version: "term.2", Changes: true}, nil
	}
	return &nstancev1.ListGroupsResponse{
		Version: "term.2", Groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1, ActualSize: 1, ProviderIds: []string{"i-1"}}},
	}, nil
}

// What has changed does not say whether a server has the instances of the shard. The connection may be
// another than before.
func TestAServerIsVerifiedByAllItsGroups(t *testing.T) {
	known := func() map[string]Known { return map[string]Known{"a": {ProviderIDs: []string{"i-1"}}} }
	g := NewGroups(Options{KnownInstances: known})
	g.start("a")
	client := &changesClient{server: conninfo.New(credentials.TLSInfo{}, "127.0.0.1:1")}
	r := &groupReader{groups: g, shard: "a", client: client}
	r.versions.add("term.1", time.Now().Add(-2*changesOverlap), true)
	assert.True(t, r.list(t.Context(), false))
	assert.Equal(t, []string{"term.1", ""}, client.known, "versions of which changes were requested")
	assert.True(t, client.server.Verified())
	_, found := g.Get("a", "workers")
	assert.True(t, found)
}
