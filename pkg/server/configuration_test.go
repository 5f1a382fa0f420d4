// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// find returns the group with this name.
func find(t *testing.T, groups []*nstancev1.GroupStatus, name string) *nstancev1.GroupStatus {
	t.Helper()
	i := slices.IndexFunc(groups, func(group *nstancev1.GroupStatus) bool { return group.Key == name })
	if i < 0 {
		t.Fatalf("there is no group %s in %v", name, groups)
	}
	return groups[i]
}

// TestAnotherConfiguration: groups become static and dynamic, are added and changed,
// and no instance is deleted because of that. Watches have the changes.
func TestAnotherConfiguration(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {
		"scaled": {"template": "worker", "size": 1}, "untouched": {"template": "worker", "size": 2, "vars": {"a": "b"}},
		"grows": {"template": "worker", "size": 1}}}`})
	operator := server.Operator("default")
	watch := watchGroups(t, operator)
	watch.untilSize("untouched", 2)
	upsert(t, operator, "scaled", &nstancev1.GroupConfig{Size: 3})
	watch.untilSize("scaled", 3)
	upsert(t, operator, "dynamic", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	watch.untilSize("dynamic", 1)
	before := list(t, operator)

	server.SetConfig(func(o *servertest.Options) {
		o.Groups = `{"default": {"dynamic": {"template": "worker", "size": 5}, "grows": {"template": "worker", "size": 2}, "comes": {"template": "worker", "size": 1}}}`
	})
	for name, static := range map[string]bool{"scaled": false, "untouched": false, "dynamic": true} {
		was := find(t, before, name)
		is := find(t, list(t, operator), name)
		want := proto.CloneOf(was)
		want.IsStatic, want.Etag, want.Limits = static, is.Etag, nil
		if name == "untouched" {
			// The vars of a static group are its own when it is dynamic.
			want.Vars = map[string]string{"a": "b"}
		}
		if static {
			want.Limits = &nstancev1.GroupLimits{MinSize: 1}
		}
		if was.IsStatic == static || was.Etag == is.Etag || !proto.Equal(is, want) {
			t.Errorf("%s was %v and is %v", name, was, is)
		}
	}
	reported := map[string]bool{}
	watch.until(func(e *nstancev1.GroupEvent) bool {
		reported[fmt.Sprint(e.Group.Key, " static ", e.Group.IsStatic)] = true
		return reported["scaled static false"] && reported["untouched static false"] && reported["dynamic static true"] && reported["comes static true"]
	})
	again := watchGroups(t, operator)
	again.untilSize("grows", 2)
	watchGroups(t, operator).untilSize("comes", 1)
	for _, was := range before {
		for _, id := range was.ProviderIds {
			if is := find(t, list(t, operator), was.Key); !slices.Contains(is.ProviderIds, id) {
				t.Errorf("instance %s of %s was deleted: %v", id, was.Key, is.ProviderIds)
			}
		}
	}

	// A group that is dynamic now can be changed and deleted like any dynamic group.
	if got := upsert(t, operator, "untouched", &nstancev1.GroupConfig{Template: "worker", Subnets: []string{"default"}, Size: 0}); got.IsStatic || got.Vars["a"] != "b" {
		t.Errorf("got %v", got)
	}
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "scaled"})
	require.NoError(t, err)
	untilListed(t, operator, "comes", "dynamic", "grows", "untouched")
}

// TestInstancesOfTheOldConfigurationAreReplaced: templates, subnet pools and
// instance types change with the groups that refer to them.
func TestInstancesOfTheOldConfigurationAreReplaced(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker"}}}`})
	operator := server.Operator("default")
	old := watchGroups(t, operator).untilSize("main", 1).ProviderIds[0]
	server.SetConfig(func(o *servertest.Options) {
		o.InstanceTypes = `{"big": {"cpu": "64", "memory": "1Ti", "arch": "arm64"}}`
		o.SubnetPools = `{"other": ["subnet-b"]}`
		o.Templates = `{"new": {"kind": "new", "arch": "arm64", "instance_type": "big", "subnet_pool": "other", "vars": {"x": "y"}}}`
		o.Groups = `{"default": {"main": {"template": "new", "size": 2}}}`
	})
	group := watchGroups(t, operator).until(func(e *nstancev1.GroupEvent) bool {
		return e.Group.Key == "main" && e.Group.ActualSize == 2 && !slices.Contains(e.Group.ProviderIds, old)
	}).Group
	if group.Template != "new" || group.InstanceType != "big" || !maps.Equal(group.Vars, map[string]string{"x": ""}) || !slices.Equal(group.Subnets, []string{"other"}) {
		t.Errorf("the group is %v", group)
	}
	nodes, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "node.kubernetes.io/instance-type=big"})
	require.NoError(t, err)
	if len(nodes.Items) != 2 {
		t.Fatalf("there are %d Nodes of the new type, want two", len(nodes.Items))
	}
	if node := nodes.Items[0]; !strings.HasPrefix(node.Name, "new") || node.Status.Capacity.Cpu().String() != "64" || node.Labels["kubernetes.io/arch"] != "arm64" {
		t.Errorf("the Node is %s with %v", node.Name, node.Status.Capacity)
	}
	if got := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "new"}); got.InstanceType != "big" {
		t.Errorf("a new group is %v", got)
	}
	_, err = operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "late", Config: &nstancev1.GroupConfig{Template: "worker"}})
	wantCode(t, "the old template", err, codes.InvalidArgument)
}

// TestAStormOfConfigurations: new files, calls to read them and changes by operators at the
// same time. Every response shows one configuration, and the last written configuration is in
// force.
func TestAStormOfConfigurations(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: groupsOf("red")})
	operator := server.Operator("default")
	watchGroups(t, operator).untilSize("a", 1)
	before := untilListed(t, operator, "a", "b")
	var storm sync.WaitGroup
	storm.Go(func() {
		for range 25 {
			for _, color := range []string{"blue", "red"} {
				server.SetConfig(func(o *servertest.Options) { o.Groups = groupsOf(color) })
			}
		}
		server.SetConfig(func(o *servertest.Options) { o.Groups = groupsOf("blue") })
	})
	for range 4 {
		storm.Go(func() {
			for range 50 {
				// A file that is being written may be rejected.
				if _, err := operator.RefreshConfig(t.Context(), &emptypb.Empty{}); err != nil {
					wantCode(t, "RefreshConfig", err, codes.FailedPrecondition)
				}
				if groups := list(t, operator); !maps.Equal(groups[0].Vars, groups[1].Vars) {
					t.Errorf("one group is %v, the other %v", groups[0], groups[1])
				}
			}
		})
	}
	storm.Go(func() {
		for range 50 {
			upsert(t, operator, "a", &nstancev1.GroupConfig{Size: 1})
			upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 0})
		}
	})
	storm.Wait()
	after := list(t, operator)
	for i, name := range []string{"a", "b"} {
		group := find(t, after, name)
		if !maps.Equal(group.Vars, map[string]string{"blue": ""}) || !slices.Equal(group.ProviderIds, before[i].ProviderIds) {
			t.Errorf("was %v, is %v", before[i], group)
		}
	}
}

func groupsOf(color string) string {
	return fmt.Sprintf(`{"default": {"a": {"template": "worker", "size": 1, "vars": {%[1]q: "x"}}, "b": {"template": "worker", "size": 0, "vars": {%[1]q: "x"}}}}`, color)
}

// TestKilledAfterAReload: a server that starts with the new configuration has the same groups
// as the server that reloaded it.
func TestKilledAfterAReload(t *testing.T) {
	first := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`})
	before := watchGroups(t, first.Operator("default")).untilSize("main", 2)
	first.SetConfig(func(o *servertest.Options) { o.Groups = `{}` })
	want := list(t, first.Operator("default"))
	first.Kill()
	second := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes})
	got := list(t, second.Operator("default"))
	if len(got) != 1 || got[0].IsStatic || !proto.Equal(got[0], want[0]) || !slices.Equal(got[0].ProviderIds, before.ProviderIds) {
		t.Errorf("there are groups %v, want %v", got, want)
	}
}

// TestTargetsWhileTheConfigurationChanges: an edit of the load balancers in the configuration
// of a running server makes a call for each target that it adds or removes, and no call for
// other targets. A server that starts with it makes no call either.
func TestTargetsWhileTheConfigurationChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		balancers := providertest.NewBalancers("web", "api")
		balancers.Delay = 30 * time.Second
		var mu sync.Mutex
		calls := map[string]int{}
		balancers.Called = func(operation, endpoint string, ids []string) error {
			mu.Lock()
			defer mu.Unlock()
			if operation != "list" {
				calls[operation+" "+endpoint] += len(ids)
			}
			return nil
		}
		o := balanced(balancers)
		o.Kubernetes = kwoktest.NewClientset()
		s := servertest.Start(t, o)
		upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, map[string]int{"register web": 3}, calls)
		entries, list := o.LoadBalancers, `["web"]`
		for n, step := range []struct {
			entries, list string
			want          map[string]int
		}{
			{`{"web": {"endpoint": "web"}, "api": {"endpoint": "api"}}`, `["web", "api"]`, map[string]int{"register api": 3}},
			{`{"both": {"endpoint": "api", "other_endpoints": ["web"]}}`, `["both"]`, map[string]int{}},
			{`{"both": {"endpoint": "api", "other_endpoints": ["web"]}, "web": {"endpoint": "web"}}`, `["web"]`, map[string]int{"deregister api": 3}},
			{`{"web": {"endpoint": "web", "other_endpoints": ["api"]}}`, `["web"]`, map[string]int{"register api": 3}},
			{`{"api": {"endpoint": "api"}, "web": {"endpoint": "web"}}`, `["api"]`, map[string]int{"deregister web": 3}},
			{`{"web": {"endpoint": "web"}}`, `["web"]`, map[string]int{"deregister api": 3, "register web": 3}},
		} {
			mu.Lock()
			clear(calls)
			mu.Unlock()
			text, err := os.ReadFile(s.ConfigPath())
			require.NoError(t, err)
			// The server reads the file every second.
			text = []byte(strings.NewReplacer(entries, step.entries, list, step.list).Replace(string(text)))
			require.NoError(t, os.WriteFile(s.ConfigPath(), text, 0o600))
			o.Templates, o.LoadBalancers = strings.Replace(o.Templates, list, step.list, 1), step.entries
			entries, list = step.entries, step.list
			time.Sleep(5 * time.Second)
			if n%2 == 0 {
				s.Kill()
				o.DataDir, o.Authority = s.DataDir, s.Authority
				s = servertest.Start(t, o)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			assert.Equal(t, step.want, calls, "step %d", n)
		}
		s.Stop()
	})
}
