// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// instances are the instances of a group: the shard of each by its id.
type instances map[string]string

// instancesOf returns the instances of a group that are not being deleted, as the
// servers list them.
func instancesOf(ctx context.Context, group string) (instances, error) {
	found := instances{}
	for _, shardID := range env.ShardIDs {
		g, err := groupOn(ctx, shardID, group)
		if err != nil {
			return nil, err
		}
		for _, i := range g.GetInstances().GetInstances() {
			switch shard.InstanceState(i.GetStatus()) {
			case shard.InstanceTerminating, shard.InstanceTerminated:
			default:
				found[i.GetId()] = shardID
			}
		}
	}
	return found, nil
}

// groupOn returns a group as the server of a shard reports it, nil if the server does not report
// it.
func groupOn(ctx context.Context, shardID, name string) (*nstancev1.GroupStatus, error) {
	list, err := env.shards[shardID].ListGroups(ctx, &emptypb.Empty{})
	for _, group := range list.GetGroups() {
		if group.GetKey() == name {
			return group, nil
		}
	}
	return nil, err
}

func getInstances(t testing.TB, group string) instances {
	t.Helper()
	found, err := instancesOf(t.Context(), group)
	require.NoError(t, err)
	return found
}

// ids returns the ids of the instances, sorted.
func (i instances) ids() []string { return slices.Sorted(maps.Keys(i)) }

// on returns the ids of the instances on a shard, sorted.
func (i instances) on(shardID string) []string {
	var ids []string
	for _, id := range i.ids() {
		if i[id] == shardID {
			ids = append(ids, id)
		}
	}
	return ids
}

// sizes returns how many instances there are on each shard of a pool.
func (i instances) sizes() []int {
	sizes := make([]int, len(shardIDs))
	for n, shardID := range shardIDs {
		sizes[n] = len(i.on(shardID))
	}
	return sizes
}

// without returns all instances but some.
func (i instances) without(ids ...string) instances {
	rest := maps.Clone(i)
	for _, id := range ids {
		delete(rest, id)
	}
	return rest
}

// sizesOf returns the sizes in the specs of a pool's shard groups, in the order of the
// shards.
func sizesOf(ctx context.Context, pool string) ([]int, error) {
	groups, err := env.ShardGroups(ctx, pool)
	if err != nil {
		return nil, err
	}
	sizes := make([]int, len(shardIDs))
	for _, g := range groups {
		n := slices.Index(shardIDs, string(g.Spec.Shard))
		if n < 0 {
			return nil, fmt.Errorf("shard group %s of another shard", g.Name)
		}
		sizes[n] = int(g.Spec.Size)
	}
	return sizes, nil
}

// expectInstances fails the test unless a group has exactly these instances, and its
// pool requests as many on each shard.
func expectInstances(t testing.TB, group string, want instances) {
	t.Helper()
	if got := getInstances(t, group); !maps.Equal(got, want) {
		t.Errorf("lost %v, new %v", want.without(got.ids()...).ids(), got.without(want.ids()...).ids())
	}
	sizes, err := sizesOf(t.Context(), group)
	require.NoError(t, err)
	assert.Equal(t, want.sizes(), sizes, "requested sizes")
	if pool, err := env.NstanceMachinePool(t.Context(), group); err != nil || ptr.Deref(pool.Status.DesiredReplicas, -1) != int32(len(want)) {
		t.Errorf("the pool wants %d instances, want %d (error %v)", ptr.Deref(pool.Status.DesiredReplicas, -1), len(want), err)
	}
}

// filled returns the sizes after so many instances were added one by one, each to the smallest
// shard. Among equal shards it is the first.
func filled(sizes []int, count int) []int {
	sizes = slices.Clone(sizes)
	for range count {
		sizes[slices.Index(sizes, slices.Min(sizes))]++
	}
	return sizes
}

// nodeLog records the group of every Node that ever existed. The audit log has only
// the names of Nodes.
type nodeLog struct {
	mu     sync.Mutex
	groups map[string]string
}

// watchNodes records Nodes until ctx is done.
func watchNodes(ctx context.Context, client kubernetes.Interface) (*nodeLog, error) {
	l := &nodeLog{groups: map[string]string{}}
	return l, testcluster.RunInformer(ctx, coreinformers.NewNodeInformer(client, 0, nil), cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*corev1.Node); ok {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.groups[node.Name] = node.Labels[v1beta1.LabelGroup]
			}
		},
	})
}

// groupOf waits until a Node that was created is recorded, and returns its group.
func (l *nodeLog) groupOf(t testing.TB, node string) (group string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "Node "+node+" is recorded", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		found, known := l.groups[node]
		if !known {
			return fmt.Errorf("%d others are", len(l.groups))
		}
		group = found
		return nil
	})
	return group
}

// isOf reports whether an object of this name is the pool, one of its shard groups, or
// belongs to an instance of the pool that was a Node.
func (l *nodeLog) isOf(name, pool string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return name == pool || strings.HasPrefix(name, pool+identifier.Separator) || l.groups[name] == pool
}

// changesSince returns the successful writes since from that match, other than to
// leases.
func changesSince(t testing.TB, from controlplane.Position, match testcluster.Match) []controlplane.Write {
	t.Helper()
	return env.Writes(t, from, match, func(w controlplane.Write) bool {
		return w.Code < http.StatusMultipleChoices && w.Resource != "leases"
	})
}

// nodeChanges returns the names of the Nodes of a group that were created and deleted since from,
// each once and sorted. In this cluster, Nodes and instances have the same names.
func nodeChanges(t testing.TB, from controlplane.Position, group string) (created, deleted []string) {
	t.Helper()
	for _, w := range changesSince(t, from, func(w controlplane.Write) bool { return w.Resource == "nodes" && w.Subresource == "" }) {
		switch {
		case w.Verb != "create" && w.Verb != "delete" || env.nodeLog.groupOf(t, w.Name) != group:
		case w.Verb == "create":
			created = append(created, w.Name)
		default:
			deleted = append(deleted, w.Name)
		}
	}
	slices.Sort(created)
	slices.Sort(deleted)
	return created, slices.Compact(deleted)
}

// expectNodeChanges fails the test unless exactly so many Nodes of a group were
// created since from, and exactly these were deleted.
func expectNodeChanges(t testing.TB, from controlplane.Position, group string, created int, deleted ...string) {
	t.Helper()
	slices.Sort(deleted)
	gotCreated, gotDeleted := nodeChanges(t, from, group)
	assert.Len(t, gotCreated, created, "created Nodes")
	assert.Equal(t, deleted, gotDeleted, "deleted Nodes")
}

// expectMachinesDeleted fails the test unless exactly these Machines of a pool were
// deleted since from.
func expectMachinesDeleted(t testing.TB, from controlplane.Position, pool string, want ...string) {
	t.Helper()
	var deleted []string
	for _, w := range changesSince(t, from, func(w controlplane.Write) bool { return w.Verb == "delete" && w.Resource == "machines" }) {
		if env.nodeLog.isOf(w.Name, pool) {
			deleted = append(deleted, w.Name)
		}
	}
	slices.Sort(deleted)
	slices.Sort(want)
	if deleted = slices.Compact(deleted); !slices.Equal(deleted, want) {
		t.Errorf("Machines %v were deleted, want %v", deleted, want)
	}
}

// expectNothingWritten fails the test for the operator's writes since from to objects
// of a pool.
func expectNothingWritten(t testing.TB, from controlplane.Position, pool string) {
	t.Helper()
	writes := changesSince(t, from, func(w controlplane.Write) bool { return testcluster.ByOperator(w) && env.nodeLog.isOf(w.Name, pool) })
	if len(writes) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(writes), testcluster.Describe(writes))
	}
}

// watchOperator fails the test at its end when the operator made requests that the
// shipped roles do not grant, or scaled a MachinePool.
func watchOperator(t testing.TB) {
	t.Helper()
	from := env.AuditEnd(t)
	t.Cleanup(func() {
		bad := env.Requests(t, from, testcluster.ByOperator, func(r controlplane.Request) bool {
			return r.Code == http.StatusForbidden || r.Action() == "patch machinepools/scale"
		})
		if len(bad) > 0 {
			t.Errorf("the operator should not have made %d requests:%s", len(bad), testcluster.Describe(bad))
		}
	})
}
