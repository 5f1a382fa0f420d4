// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	"nstance.dev/operator/pkg/shard/pool"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

// served is a harness whose shard "a" is a real server over TCP and mutual TLS.
type served struct {
	*harness
	server *servertest.Server
	groups *informer.Groups
	// news has a token when the cache of groups has changed.
	news chan struct{}
}

// newServed makes the controller of a shard group of size instances. A server that
// does not know extensions is ours without what they add.
func newServed(t *testing.T, size int32, extensions bool) *served {
	t.Helper()
	object := newObject()
	object.Spec = v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: "a", Size: size, Template: "worker"}
	s := &served{harness: newHarness(t, object), server: servertest.Start(t, servertest.Options{}),
		groups: informer.NewGroups(), news: make(chan struct{}, 1)}
	s.groups.AddHandler(informer.Handler{OnGroup: func(string, string) { s.tell() }, OnShard: func(string) { s.tell() }})
	certPEM, keyPEM, err := s.server.Authority.IssueClient(pki.Client{ID: "operator", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var id identity.Identity
	if err := id.Set(certPEM, keyPEM, s.server.Authority.CertificatePEM()); err != nil {
		t.Fatal(err)
	}
	shards := pool.New(pool.Options{Credentials: id.TransportCredentials()})
	shards.Set(map[string]shard.Endpoint{"a": {Operator: s.server.Addr}})
	s.controller.shards, s.controller.groups = shards, s.groups
	if !extensions {
		s.controller.shards = plainShards{shards}
	}

	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	done := make(chan struct{})
	go func() {
		defer close(done)
		shards.Run(ctx, func(ctx context.Context, id string, client nstancev1.OperatorServiceClient) {
			if !extensions {
				client = plainClient{client}
			}
			s.groups.Serve(ctx, id, client)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

func (s *served) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// until syncs with all that the server tells until the group is as wanted.
func (s *served) until(what string, condition func(shard.Group) bool) shard.Group {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		if _, _, err := s.sync(); err != nil {
			s.t.Fatal(err)
		}
		if group, ok := s.groups.Get("a", "workers"); ok && condition(group) {
			return group
		}
		select {
		case <-s.news:
		case <-deadline:
			s.t.Fatalf("after %v still not: %s", patience, what)
		}
	}
}

// untilRunning waits until size instances run and the status says so.
func (s *served) untilRunning(size int32) shard.Group {
	s.t.Helper()
	return s.until("all instances run", func(group shard.Group) bool {
		status := s.object().Status
		return group.Size == size && group.ActualSize == size && *status.Replicas == size && len(status.ProviderIDs) == int(size)
	})
}

// listsRunning tells whether the server lists as many instances as the group is to
// have, and all of them run.
func listsRunning(group shard.Group) bool {
	return group.ListsInstances && len(group.Instances) == int(group.Size) &&
		!slices.ContainsFunc(group.Instances, func(i shard.Instance) bool { return i.State != shard.InstanceRunning })
}

func ids(group shard.Group) []string {
	var ids []string
	for _, instance := range group.Instances {
		ids = append(ids, instance.ID)
	}
	return slices.Sorted(slices.Values(ids))
}

func TestExactlyTheChosenInstancesGo(t *testing.T) {
	s := newServed(t, 5, true)
	s.untilRunning(5)
	before := ids(s.until("all are listed", listsRunning))
	// Whichever the server would choose by itself, it is not all of these.
	for _, chosen := range []func([]string) []string{
		func(ids []string) []string { return ids[:1] },
		func(ids []string) []string { return ids[len(ids)-1:] },
		func(ids []string) []string { return ids[1:2] },
	} {
		victims := slices.Clone(chosen(before))
		size := int32(len(before) - len(victims))
		s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = size, victims })
		s.untilRunning(size)
		after := ids(s.until("the chosen are no longer listed", listsRunning))
		want := slices.DeleteFunc(slices.Clone(before), func(id string) bool { return slices.Contains(victims, id) })
		if !slices.Equal(after, want) {
			t.Fatalf("of %q there are %q, want all but %q", before, after, victims)
		}
		before = after
	}

	// Forgetting who went ends nobody, and none of this was said twice.
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.RemoveFirst = nil })
	group := s.until("the server has forgotten them", func(group shard.Group) bool { return group.RemoveFirst == nil })
	if got := ids(group); !slices.Equal(got, before) {
		t.Errorf("there are %q, want %q", got, before)
	}
	if got := len(s.server.Upserts("workers")); got != 5 {
		t.Errorf("the server got %d upserts, want one for each of 5 specs", got)
	}
}

func TestServerWithoutTheExtensionScalesAsBefore(t *testing.T) {
	s := newServed(t, 3, false)
	before := s.untilRunning(3)
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = 2, []string{"knd1"} })
	after := s.untilRunning(2)
	for _, id := range after.ProviderIDs {
		if !slices.Contains(before.ProviderIDs, id) {
			t.Errorf("instance %s is a replacement", id)
		}
	}
	s.until("the shard group is ready", func(shard.Group) bool {
		return slices.Contains(s.conditions(), "Ready=True Ready: ")
	})
	for range 3 {
		s.after(10 * time.Minute)
		s.expect()
	}
	if got := len(s.server.Upserts("workers")); got != 2 {
		t.Errorf("the server got %d upserts, want one for each of 2 specs", got)
	}
}

// plainShards are shards whose servers do not know the extensions.
type plainShards struct{ Shards }

func (p plainShards) UpsertGroup(ctx context.Context, id, key string, config shard.GroupConfig) (shard.Group, error) {
	config.RemoveFirst = nil
	group, err := p.Shards.UpsertGroup(ctx, id, key, config)
	group.ListsInstances, group.Instances, group.RemoveFirst, group.Node = false, nil, nil, nil
	return group, err
}

// plainClient is the client of a server that does not know the extensions.
type plainClient struct {
	nstancev1.OperatorServiceClient
}

func plain(group *nstancev1.GroupStatus) {
	if group != nil {
		group.Instances, group.RemoveFirst, group.Node = nil, nil, nil
	}
}

func (p plainClient) ListGroups(ctx context.Context, in *emptypb.Empty, options ...grpc.CallOption) (*nstancev1.ListGroupsResponse, error) {
	answer, err := p.OperatorServiceClient.ListGroups(ctx, in, options...)
	for _, group := range answer.GetGroups() {
		plain(group)
	}
	return answer, err
}

func (p plainClient) WatchGroups(ctx context.Context, in *emptypb.Empty, options ...grpc.CallOption) (grpc.ServerStreamingClient[nstancev1.GroupEvent], error) {
	stream, err := p.OperatorServiceClient.WatchGroups(ctx, in, options...)
	return plainWatch{stream}, err
}

type plainWatch struct {
	grpc.ServerStreamingClient[nstancev1.GroupEvent]
}

func (p plainWatch) Recv() (*nstancev1.GroupEvent, error) {
	event, err := p.ServerStreamingClient.Recv()
	plain(event.GetGroup())
	return event, err
}
