// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shrink gives a group a smaller size and the instances to remove first.
func shrink(t *testing.T, operator nstancev1.OperatorServiceClient, group string, size int32, first ...string) *nstancev1.GroupStatus {
	t.Helper()
	reply, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Size: size}, RemoveFirst: first,
	})
	require.NoError(t, err)
	return reply
}

// TestTheOperatorChoosesWhatIsRemoved in a dynamic and a static group. Its choice is
// durable.
func TestTheOperatorChoosesWhatIsRemoved(t *testing.T) {
	static := `{"default": {"main": {"template": "worker", "size": 3}}}`
	first := servertest.Start(t, servertest.Options{Groups: static})
	operator := first.Operator("default")
	watch := watchGroups(t, operator)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
	left := map[string][]string{}
	chosen := map[string][]string{}
	for _, group := range []string{"main", "workers"} {
		ids := instanceIDs(watchGroups(t, operator).untilSize(group, 3))
		chosen[group] = []string{ids[2], ids[1]}
		if reply := shrink(t, operator, group, 1, chosen[group]...); !slices.Equal(reply.RemoveFirst, chosen[group]) {
			t.Errorf("the response is %v", reply)
		}
		after := watch.untilSize(group, 1)
		left[group] = ids[:1]
		if got := instanceIDs(after); !slices.Equal(got, left[group]) || !slices.Equal(after.RemoveFirst, chosen[group]) {
			t.Errorf("%s has %q left, want %q: %v", group, got, left[group], after)
		}
	}
	first.Stop()

	second := servertest.Start(t, servertest.Options{
		Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Groups: static,
	})
	operator = second.Operator("default")
	for _, group := range list(t, operator) {
		if got := instanceIDs(group); !slices.Equal(got, left[group.Key]) || !slices.Equal(group.RemoveFirst, chosen[group.Key]) {
			t.Errorf("after a restart %v", group)
		}
	}
	// An operator without the extension chooses no instances.
	if reply := shrink(t, operator, "workers", 1); len(reply.RemoveFirst) != 0 {
		t.Errorf("the response is %v", reply)
	}
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: "workers", Config: &nstancev1.GroupConfig{Size: 0}, RemoveFirst: []string{"a", "a"},
	})
	wantCode(t, "the same id twice", err, codes.InvalidArgument)
	if err == nil || !strings.Contains(err.Error(), `remove_first[1]: Duplicate value: "a"`) {
		t.Errorf("got %v", err)
	}
	if got := nodes(t, second); got != 2 {
		t.Errorf("there are %d Nodes, want 2", got)
	}
}

// TestANodeIsReportedBeforeItExists with the properties of the current configuration.
func TestANodeIsReportedBeforeItExists(t *testing.T) {
	server := servertest.Start(t, servertest.Options{
		Templates: `{"worker": {
			"kind": "knd", "arch": "arm64", "instance_type": "m7g.large", "subnet_pool": "default",
			"args": {"labels": {"pool": "gold", "name": "{{ .Instance.ID }}"}, "annotations": {"a": "b"}},
		}}`,
		InstanceTypes: `{"big": {"cpu": "64", "memory": "1Ti", "arch": "arm64"}}`,
	})
	operator := server.Operator("default")
	want := &nstancev1.NodeShape{
		Architecture: "arm64", OperatingSystem: "linux",
		Capacity: map[string]string{"cpu": "2", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"},
		Labels: map[string]string{
			"pool": "gold", "kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux",
			"node.kubernetes.io/instance-type": "m7g.large",
			"topology.kubernetes.io/region":    "us-west-2", "topology.kubernetes.io/zone": "us-west-2a",
			"nstance.dev/managed": "true", "nstance.dev/cluster-id": "test", "nstance.dev/shard": "us-west-2a",
			"nstance.dev/tenant": "default", "nstance.dev/group": "workers",
		},
	}
	reply := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker"})
	if diff := cmp.Diff(want, reply.Node, protocmp.Transform()); diff != "" {
		t.Errorf("a Node of a group of size 0 (-want +got):\n%s", diff)
	}
	reply = upsert(t, operator, "workers", &nstancev1.GroupConfig{InstanceType: "big"})
	want.Capacity["cpu"], want.Capacity["memory"] = "64", "1Ti"
	want.Labels["node.kubernetes.io/instance-type"] = "big"
	if diff := cmp.Diff(want, reply.Node, protocmp.Transform()); diff != "" {
		t.Errorf("after the type has changed (-want +got):\n%s", diff)
	}
	server.SetConfig(func(o *servertest.Options) {
		o.Templates = strings.Replace(o.Templates, "gold", "silver", 1)
	})
	want.Labels["pool"] = "silver"
	watchGroups(t, operator).until(func(e *nstancev1.GroupEvent) bool {
		return cmp.Equal(want, e.Group.Node, protocmp.Transform())
	})
}
