// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// listed returns an instance as a group's status lists it.
func listed(i instance.Instance) *nstancev1.ManagedInstance {
	return &nstancev1.ManagedInstance{
		Id: i.ID, ProviderId: i.ProviderID, Status: instanceStatus(&i), CreatedAt: timestamppb.New(i.CreatedAt),
	}
}

// TestAllManagedInstancesAreListed by id, with the status that GetInstanceStatus
// returns.
func TestAllManagedInstancesAreListed(t *testing.T) {
	made := func(id string, state instance.State, change func(*instance.Instance)) instance.Instance {
		i := shown(id, state)
		i.CreatedAt = epoch.Add(time.Duration(id[0]) * time.Second)
		if change != nil {
			change(&i)
		}
		return i
	}
	instances := []instance.Instance{
		made("h", instance.Missing, nil),
		made("g", instance.Running, func(i *instance.Instance) { i.DeleteReason = instance.ReasonScaleDown }),
		made("f", instance.Terminating, nil),
		made("e", instance.Failed, nil),
		made("d", instance.Stopped, nil),
		made("c", instance.Running, func(i *instance.Instance) { i.Drain = &instance.Drain{Reason: instance.ReasonScaleDown} }),
		made("b", instance.Running, nil),
		made("a", instance.Pending, func(i *instance.Instance) { i.ProviderID = "" }),
	}
	want := map[string]string{
		"a": "pending", "b": "running", "c": "running", "d": "stopped", "e": "failed",
		"f": "terminating", "g": "terminating", "h": "terminating",
	}
	status := newStatus(&groups.Group{Key: key("workers"), Size: 3, RemoveFirst: []string{"z", "c"}}, instances, nil)
	got := map[string]string{}
	var ids []string
	for _, i := range status.Instances.Instances {
		got[i.Id] = i.Status
		ids = append(ids, i.Id)
		if at := epoch.Add(time.Duration(i.Id[0]) * time.Second); !i.CreatedAt.AsTime().Equal(at) || (i.ProviderId == "") != (i.Id == "a") {
			t.Errorf("listed is %v", i)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || !slices.IsSorted(ids) {
		t.Errorf("%q are listed (-want +got):\n%s", ids, diff)
	}
	// The order is kept, and ids without an instance stay.
	if !slices.Equal(status.RemoveFirst, []string{"z", "c"}) {
		t.Errorf("remove_first is %q", status.RemoveFirst)
	}
	// An empty message reports that there are no instances; a missing one would mean
	// that they are not known.
	if status := newStatus(&groups.Group{}, nil, nil); status.Instances == nil || status.Node != nil {
		t.Errorf("the status of an empty group is %v", status)
	}
}

// TestEveryReportedChangeOfInstanceIsSent and no change that is not part of the
// status.
func TestEveryReportedChangeOfInstanceIsSent(t *testing.T) {
	c, s := newStatusCache()
	s.resize(c, "workers", 1)
	w := c.watch("default")
	takeEvents(w)
	i := shown("a", instance.Pending)
	i.ProviderID = ""
	for _, step := range []struct {
		name   string
		change func()
		sent   bool
	}{
		{"it is being created", func() {}, true},
		{"it runs, but no client could find its Node", func() { i.State = instance.Running }, false},
		{"its provider id is known", func() { i.ProviderID = "id-a" }, true},
		{"it drains", func() { i.Drain = &instance.Drain{Reason: instance.ReasonScaleDown} }, false},
		{"it is being deleted", func() { i.DeleteReason = instance.ReasonScaleDown }, true},
		{"it is terminating", func() { i.State = instance.Terminating }, false},
	} {
		step.change()
		s.instances[key("workers")] = []instance.Instance{i}
		c.Refresh(key("workers"))
		if events := takeEvents(w); (len(events) == 1) != step.sent {
			t.Errorf("%s: sent %q", step.name, events)
		}
	}
	s.instances[key("workers")] = nil
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 1")

	// A change of removeFirst alone is sent too.
	s.groups[key("workers")] = &groups.Group{Key: key("workers"), Size: 1, RemoveFirst: []string{"a"}}
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 1")
}

func TestNodeShape(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.io/arch": "arm64", "empty": ""}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}, {Key: "b", Effect: corev1.TaintEffectNoExecute},
		}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("8Gi")},
			NodeInfo: corev1.NodeSystemInfo{Architecture: "arm64", OperatingSystem: "linux"},
		},
	}
	want := &nstancev1.NodeShape{
		Architecture: "arm64", OperatingSystem: "linux",
		Capacity: map[string]string{"cpu": "1500m", "memory": "8Gi"},
		Labels:   map[string]string{"kubernetes.io/arch": "arm64", "empty": ""},
		Taints:   []*nstancev1.NodeTaint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}, {Key: "b", Effect: "NoExecute"}},
	}
	// A group of size 0 has it too.
	c, s := newStatusCache()
	s.node = node
	s.resize(c, "workers", 0)
	got := c.list("default")[0].Node
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// So does a deleted group for as long as it is listed.
	s.instances[key("workers")] = []instance.Instance{shown("a", instance.Running)}
	s.remove(c, "workers")
	if status := c.list("default")[0]; !status.Deleting || !proto.Equal(status.Node, want) {
		t.Errorf("the deleted group is %v", status)
	}
}
