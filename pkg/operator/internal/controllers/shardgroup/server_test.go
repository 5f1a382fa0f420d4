// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	"nstance.dev/operator/pkg/testing/settingstest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// served is a harness whose shard "a" is a real server over TCP and mutual TLS.
type served struct {
	*harness
	servers *shardtest.Servers
	server  *servertest.Server
	groups  *informer.Groups
	// changes contains a token if the cache of groups has changed.
	changes chan struct{}
}

// newServed returns the controller of a shard group of size instances. Without extensions, the
// server ignores them and does not report them.
func newServed(t *testing.T, size int32, extensions bool) *served {
	t.Helper()
	object := newObject()
	object.Spec = v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: "a", Size: size, GroupSettings: v1beta1.GroupSettings{Template: "worker"}}
	servers := shardtest.StartServers(t, servertest.Options{
		Shard: "a", Balancers: providertest.NewBalancers("web"), LoadBalancers: `{"web": {"endpoint": "web"}}`,
		Templates: `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default", "tenants": ["*"],
			"limits": {"load_balancers": ["*"]}}}`,
	})
	s := &served{servers: servers, server: servers.ByID["a"], groups: servers.Groups, changes: make(chan struct{}, 1)}
	s.groups.AddHandler(shard.GroupHandler{OnGroup: func(string, string) { s.signal() }, OnShard: func(string) { s.signal() }})
	s.harness = newHarnessOf(t, func(h *harness) {
		h.UseServers(servers)
		if !extensions {
			h.ShardClient = plainShards{servers.Pool}
			servers.Wrap = func(client nstancev1.OperatorServiceClient) nstancev1.OperatorServiceClient {
				return plainClient{client}
			}
		}
	}, object)
	servers.Connect()
	return s
}

func (s *served) signal() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// until syncs after every change that the server reports, until the group satisfies condition.
func (s *served) until(what string, condition func(shard.Group) bool) shard.Group {
	s.T.Helper()
	deadline := time.After(runtest.Timeout)
	for {
		_, _, err := s.Sync()
		require.NoError(s.T, err)
		if group, ok := s.groups.Get("a", "workers"); ok && condition(group) {
			return group
		}
		select {
		case <-s.changes:
		case <-deadline:
			s.T.Fatalf("after %v it is not true that %s", runtest.Timeout, what)
		}
	}
}

// untilRunning waits until size instances run and the status has this size.
func (s *served) untilRunning(size int32) shard.Group {
	s.T.Helper()
	return s.until("all instances run", func(group shard.Group) bool {
		status := s.object().Status
		return group.Size == size && group.ActualSize == size && *status.Replicas == size && len(status.ProviderIDs) == int(size)
	})
}

// listsRunning reports whether the server lists as many instances as the group's size, and all
// of them run.
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

func TestScaleDownDeletesTheCandidates(t *testing.T) {
	s := newServed(t, 5, true)
	s.untilRunning(5)
	before := ids(s.until("all are listed", listsRunning))
	// No rule of the server would select the same instances in all three cases.
	for _, chosen := range []func([]string) []string{
		func(ids []string) []string { return ids[:1] },
		func(ids []string) []string { return ids[len(ids)-1:] },
		func(ids []string) []string { return ids[1:2] },
	} {
		candidates := slices.Clone(chosen(before))
		size := int32(len(before) - len(candidates))
		s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = size, candidates })
		s.untilRunning(size)
		after := ids(s.until("the candidates are no longer listed", listsRunning))
		want := slices.DeleteFunc(slices.Clone(before), func(id string) bool { return slices.Contains(candidates, id) })
		if !slices.Equal(after, want) {
			t.Fatalf("of %q there are %q, want all but %q", before, after, candidates)
		}
		before = after
	}

	// Without candidates nothing is terminated, and no configuration is sent twice.
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.RemoveFirst = nil })
	group := s.until("the server has no candidates", func(group shard.Group) bool { return group.RemoveFirst == nil })
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
		s.Advance(10 * time.Minute)
		s.Expect()
	}
	if got := len(s.server.Upserts("workers")); got != 2 {
		t.Errorf("the server got %d upserts, want one for each of 2 specs", got)
	}
}

func TestRemovedSettingsReachTheServer(t *testing.T) {
	s := newServed(t, 0, true)
	own := s.until("the group exists", func(group shard.Group) bool { return group.ETag != "" }).GroupSettings
	s.change(func(g *v1beta1.NstanceShardGroup) {
		g.Spec.InstanceType, g.Spec.Vars = "c7i.large", map[string]string{"a": "1", "b": "2"}
	})
	s.until("the settings are in effect", func(group shard.Group) bool {
		return group.InstanceType == "c7i.large" && group.Vars["a"] == "1" && group.Vars["b"] == "2"
	})
	s.change(func(g *v1beta1.NstanceShardGroup) { delete(g.Spec.Vars, "b") })
	s.until("one var is removed", func(group shard.Group) bool {
		_, found := group.Vars["b"]
		return !found && group.Vars["a"] == "1" && group.InstanceType == "c7i.large"
	})
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.InstanceType, g.Spec.Vars = "", nil })
	s.until("the server's own settings are in effect again", func(group shard.Group) bool { return group.GroupSettings.Equal(own) })
	if got := len(s.server.Upserts("workers")); got != 4 {
		t.Errorf("the server got %d upserts, want one for each of 4 specs", got)
	}
}

// The settings are filled by reflection, so that the test includes new settings: from the spec
// to the storage of the server and back to the status.
func TestEverySettingReachesTheServerAndIsRemoved(t *testing.T) {
	s := newServed(t, 0, true)
	own := s.until("the group exists", func(group shard.Group) bool { return group.ETag != "" }).GroupSettings
	var all v1beta1.GroupSettings
	settingstest.Fill(&all)
	// The server accepts only values of its configuration.
	all.Template, all.InstanceType, all.Subnets = "worker", "c7i.large", []v1beta1.Identifier{"default"}
	all.LoadBalancers = []v1beta1.Identifier{"web"}
	// No shard knows the propagation of a taint.
	all.Node.Taints[0].Effect, all.Node.Taints[0].Propagation = "NoSchedule", ""
	// Candidates take the place of the instance type.
	all.ReturnAfterSeconds = 0
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.GroupSettings = all })
	group := s.until("every setting is declared", func(group shard.Group) bool {
		return group.Declared != nil && group.Declared.Equal(controllers.ShardSettings(all))
	})
	if !group.GroupSettings.Equal(*group.Declared) {
		t.Errorf("in effect is %+v, want %+v", group.GroupSettings, *group.Declared)
	}
	// The status follows the cache by one sync.
	_, _, err := s.Sync()
	require.NoError(t, err)
	want, err := json.Marshal(all)
	require.NoError(t, err)
	reported, err := json.Marshal(s.object().Status.Config)
	require.NoError(t, err)
	if string(reported) != string(want) {
		t.Errorf("the status reports %s, want %s", reported, want)
	}

	s.change(func(g *v1beta1.NstanceShardGroup) {
		g.Spec.InstanceType, g.Spec.ReturnAfterSeconds = "", 600
		g.Spec.Candidates = []v1beta1.ShardCandidate{{Name: "base", InstanceType: "m7i.large", MaxReplicas: ptr.To[int32](1)}, {Name: "rest", InstanceType: "c7i.large"}}
	})
	candidates := controllers.ShardGroupSettings(&s.object().Spec)
	group = s.until("the candidates are declared", func(group shard.Group) bool {
		return group.Declared != nil && group.Declared.Equal(candidates)
	})
	assert.True(t, controllers.SettingsInEffect(candidates, group.GroupSettings), "in effect is %+v, want %+v", group.GroupSettings, candidates)

	s.change(func(g *v1beta1.NstanceShardGroup) {
		g.Spec.Candidates = nil
		g.Spec.GroupSettings = v1beta1.GroupSettings{Template: "worker"}
	})
	group = s.until("the server's own settings are in effect again", func(group shard.Group) bool { return group.GroupSettings.Equal(own) })
	if want := (shard.GroupSettings{Template: "worker"}); !group.Declared.Equal(want) {
		t.Errorf("declared is %+v, want %+v", *group.Declared, want)
	}
	if got := len(s.server.Upserts("workers")); got != 4 {
		t.Errorf("the server got %d upserts, want one for each of 4 specs", got)
	}
}

// A server without the extension cannot remove a setting, and is not called for it repeatedly.
func TestRemovedSettingsStayOnAnOlderServer(t *testing.T) {
	s := newServed(t, 0, false)
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Vars = map[string]string{"a": "1"} })
	s.until("the var is in effect", func(group shard.Group) bool { return group.Vars["a"] == "1" })
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Vars = nil })
	for range 3 {
		s.Advance(10 * time.Minute)
		_, _, err := s.Sync()
		require.NoError(t, err)
	}
	if got := len(s.server.Upserts("workers")); got > 2 {
		t.Errorf("the server got %d upserts, want one for each of 2 specs", got)
	}
}

// A setting that the server does not know is reported, and the server is not called for it
// repeatedly. The other settings are in effect.
func TestASettingThatTheServerDoesNotKnow(t *testing.T) {
	s := newServed(t, 0, false)
	s.until("the group exists", func(group shard.Group) bool { return group.ETag != "" })
	s.change(func(g *v1beta1.NstanceShardGroup) {
		g.Spec.LoadBalancers, g.Spec.DrainTimeoutSeconds, g.Spec.Vars = []v1beta1.Identifier{"web"}, 600, map[string]string{"a": "1"}
		g.Spec.Node = &v1beta1.NodeSettings{Labels: map[string]string{"a": "1"}}
	})
	s.until("the var is in effect", func(group shard.Group) bool { return group.Vars["a"] == "1" })
	for range 3 {
		s.Advance(10 * time.Minute)
		_, _, err := s.Sync()
		require.NoError(t, err)
	}
	require.Len(t, s.server.Upserts("workers"), 2, "one call for each of 2 specs")
	const message = `the server of shard "a" does not know drainTimeoutSeconds, loadBalancers and keeps its own values: update it, or remove them from the pool's spec`
	require.Contains(t, s.conditions(), "ConfigValid=False UnsupportedByServer: "+message)
	require.Contains(t, s.conditions(), "Ready=False UnsupportedByServer: "+message)

	// Without its server the operator sets labels and taints, and nobody the maximum of Pods.
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Node.MaxPods = 17 })
	_, _, err := s.Sync()
	require.NoError(t, err)
	require.Contains(t, s.conditions(), "ConfigValid=False UnsupportedByServer: "+strings.Replace(message, "loadBalancers and", "loadBalancers, node.maxPods and", 1))
}

// plainShards calls servers without the extensions.
type plainShards struct{ shard.Client }

func (p plainShards) UpsertGroup(ctx context.Context, id, key string, config shard.GroupConfig) (shard.Group, error) {
	config.RemoveFirst, config.Revision, config.Replaces, config.LoadBalancers, config.DrainTimeoutSeconds = nil, nil, nil, nil, 0
	config.Node = shard.NodeSettings{}
	group, err := p.Client.UpsertGroup(ctx, id, key, config)
	group.ListsInstances, group.Instances, group.RemoveFirst, group.Shape, group.Declared, group.Revision = false, nil, nil, nil, nil, nil
	group.LoadBalancers, group.DrainTimeoutSeconds, group.KnownSettings, group.Node = nil, 0, 0, shard.NodeSettings{}
	return group, err
}

func (p plainShards) DeleteGroup(ctx context.Context, id, key string, _ *shard.Revision) error {
	return p.Client.DeleteGroup(ctx, id, key, nil)
}

// plainClient is the client of a server without the extensions.
type plainClient struct {
	nstancev1.OperatorServiceClient
}

func plain(group *nstancev1.GroupStatus) {
	if group != nil {
		group.Instances, group.RemoveFirst, group.Node, group.Declared, group.Revision = nil, nil, nil, nil, nil
		group.LoadBalancers, group.DrainTimeoutSeconds, group.KnownSettings, group.NodeSettings = nil, 0, 0, nil
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
