// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/shardrelay"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Every instance of a pool has a Machine, which Cluster API counts and matches with
// its Node.
func TestMachines(t *testing.T) {
	t.Parallel()
	const name, replicas = "machines", 4
	watchOperator(t)
	group := createPool(t, name, replicas, func(machinePool *clusterv1.MachinePool, _ *v1beta1.NstanceMachinePool) {
		machinePool.Annotations[clusterv1.AutoscalerMinSizeAnnotation] = strconv.Itoa(replicas)
		machinePool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation] = strconv.Itoa(replicas)
	})
	found := untilRunning(t, name, replicas)
	untilCounted(t, name, replicas)
	expectContract(t, name, found)
	nodes, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	for _, node := range nodes {
		machine, err := machineOf(t.Context(), &node)
		if err != nil || machine.GetName() != node.Name || node.Annotations[clusterv1.MachineAnnotation] != node.Name {
			t.Errorf("Node %s is annotated with Machine %q, error %v", node.Name, node.Annotations[clusterv1.MachineAnnotation], err)
		}
	}

	// The autoscaler itself requests no size outside the limits.
	if group.deleteNodes(t.Context(), &nodes[0]) == nil || group.increaseSize(t.Context(), 1) == nil {
		t.Error("a size outside the limits was requested")
	}
	expectInstances(t, name, found)

	for _, size := range []int{replicas + 2, replicas - 1} {
		require.NoError(t, group.setSize(t.Context(), int64(size)))
		untilRunning(t, name, size)
		untilCounted(t, name, int32(size))
	}
}

// A pool that the autoscaler does not scale has no Machines, and is scaled like any
// other.
func TestNoMachinesByDefault(t *testing.T) {
	t.Parallel()
	const name = "no-machines"
	watchOperator(t)
	group := createPool(t, name, 4, notScaled)
	untilWithoutMachines(t, name, 4, "")
	for _, replicas := range []int{6, 2} {
		require.NoError(t, group.setSize(t.Context(), int64(replicas)))
		untilWithoutMachines(t, name, replicas, "")
	}
	sizes, err := sizesOf(t.Context(), name)
	if err != nil || fmt.Sprint(sizes) != "[1 1 0]" {
		t.Errorf("the sizes are %v, want an even split (error %v)", sizes, err)
	}
}

// untilWithoutMachines waits until a pool has so many instances and no Machines, and
// reports the reason, "" if they are not wanted.
func untilWithoutMachines(t *testing.T, name string, replicas int, reason string) {
	t.Helper()
	testcluster.Eventually(t, timeout, fmt.Sprintf("%s has %d instances without Machines", name, replicas), func(ctx context.Context) error {
		found, err := instancesOf(ctx, name)
		if err != nil {
			return err
		}
		if len(found) != replicas {
			return fmt.Errorf("%d instances", len(found))
		}
		return errors.Join(stable(ctx, name, found), hasMachines(ctx, name, 0), machinesAre(ctx, name, false, reason))
	})
}

// hasMachines succeeds when a pool has so many Machines and as many
// NstanceMachines.
func hasMachines(ctx context.Context, name string, count int) error {
	machines, err := machinesOf(ctx, name)
	if err != nil {
		return err
	}
	nstanceMachines, err := nstanceMachinesOf(ctx, name)
	if err == nil && (len(machines) != count || len(nstanceMachines) != count) {
		err = fmt.Errorf("%d Machines and %d NstanceMachines, want %d", len(machines), len(nstanceMachines), count)
	}
	return err
}

// machinesAre succeeds when a pool reports whether its instances have Machines, with this
// reason. Without a reason they are not wanted, and the pool has no condition.
func machinesAre(ctx context.Context, name string, enabled bool, reason string) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	status := metav1.ConditionFalse
	if enabled {
		status = metav1.ConditionTrue
	}
	if reason == "" {
		if condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionMachinesEnabled); condition != nil {
			return fmt.Errorf("condition %+v", condition)
		}
	} else if err := testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionMachinesEnabled, status, reason); err != nil {
		return err
	}
	if on := pool.Status.InfrastructureMachineKind != ""; on != enabled {
		return fmt.Errorf("the kind of its machines is %q", pool.Status.InfrastructureMachineKind)
	}
	return nil
}

// Machines are created as the pool requests, and no instance is affected.
func TestSwitchingModes(t *testing.T) {
	t.Parallel()
	const name = "modes"
	watchOperator(t)
	group := createPool(t, name, 3, notScaled)
	untilWithoutMachines(t, name, 3, "")
	first, from := getInstances(t, name), env.AuditEnd(t)

	// The pool becomes a node group of the autoscaler.
	annotatePool(t, name, clusterv1.AutoscalerMinSizeAnnotation, `"0"`)
	annotatePool(t, name, clusterv1.AutoscalerMaxSizeAnnotation, `"10"`)
	untilRunning(t, name, 3)
	expectInstances(t, name, first)

	// Instances with a Machine keep it, new instances get no Machine.
	patchPool(t, name, `{"spec":{"machineMode":"Never"}}`)
	never := func(ctx context.Context) error {
		return machinesAre(ctx, name, false, "")
	}
	testcluster.Eventually(t, timeout, "the Machines are switched off", never)
	untilResynced(t)
	expectInstances(t, name, first)
	expectNodeChanges(t, from, name, 0)
	if err := hasMachines(t.Context(), name, 3); err != nil {
		t.Errorf("after switching off: %v", err)
	}
	require.NoError(t, group.increaseSize(t.Context(), 1))
	testcluster.Eventually(t, timeout, "a fourth instance runs", func(ctx context.Context) error {
		found, err := instancesOf(ctx, name)
		if err == nil && len(found) != 4 {
			err = fmt.Errorf("%d instances", len(found))
		}
		return errors.Join(err, stable(ctx, name, found), never(ctx))
	})
	untilResynced(t)
	if err := hasMachines(t.Context(), name, 3); err != nil {
		t.Errorf("after growing without Machines: %v", err)
	}
	second := getInstances(t, name)

	patchPool(t, name, `{"spec":{"machineMode":"Always"}}`)
	untilRunning(t, name, 4)
	expectInstances(t, name, second)
	expectNodeChanges(t, from, name, 1)

	// Machines are deleted with their instances, even when they are switched off.
	patchPool(t, name, `{"spec":{"machineMode":"Never"}}`)
	testcluster.Eventually(t, timeout, "the Machines are switched off again", never)
	require.NoError(t, group.setSize(t.Context(), 2))
	testcluster.Eventually(t, timeout, "two instances are left, with their Machines", func(ctx context.Context) error {
		found, err := instancesOf(ctx, name)
		if err == nil && len(found) != 2 {
			err = fmt.Errorf("%d instances", len(found))
		}
		return errors.Join(err, stable(ctx, name, found), hasMachines(ctx, name, 2))
	})
}

// firstExtension is the least number of a field that is an extension
// (docs/protocol.md#extensions).
const firstExtension = 1000

// startOldServer starts a relay to the server of a shard that drops all extensions,
// and lets operators reach the shard through it.
func startOldServer(ctx context.Context, shardID string) error {
	relay := &shardrelay.Relay{
		Request: func(_ context.Context, request proto.Message) error {
			dropExtensions(request.ProtoReflect())
			return nil
		},
		Response: func(response proto.Message) { dropExtensions(response.ProtoReflect()) },
	}
	address, err := relay.Start(ctx, env.Installation, shardID)
	if err != nil {
		return err
	}
	return env.SetShardAddress(ctx, shardID, address)
}

// dropExtensions removes the fields from a message that a peer without extensions does not know.
func dropExtensions(message protoreflect.Message) {
	message.SetUnknown(nil)
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Number() >= firstExtension:
			message.Clear(field)
		case field.Message() == nil || field.IsMap():
			// No map contains messages with extensions.
		case field.IsList():
			for i := range value.List().Len() {
				dropExtensions(value.List().Get(i).Message())
			}
		default:
			dropExtensions(value.Message())
		}
		return true
	})
}

// A pool has no Machines as long as one of its shards cannot delete a selected
// instance. It reports that, and is scaled without Machines.
func TestOldServer(t *testing.T) {
	t.Parallel()
	const name = "old"
	watchOperator(t)
	shards := []v1beta1.Identifier{v1beta1.Identifier(shardIDs[0]), oldShard}
	group := createPool(t, name, 2, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) { pool.Spec.Shards = shards })
	untilWithoutMachines(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	for _, size := range []int{5, 1} {
		require.NoError(t, group.setSize(t.Context(), int64(size)))
		untilWithoutMachines(t, name, size, v1beta1.ReasonUnsupportedByServer)
	}
	pool, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionMachinesEnabled)
	if !strings.Contains(condition.Message, oldShard) || strings.Contains(condition.Message, shardIDs[0]) {
		t.Errorf("the message is %q, want only shard %s to be named", condition.Message, oldShard)
	}

	// The autoscaler can scale it up, and cannot delete a selected Node.
	require.NoError(t, group.increaseSize(t.Context(), 1))
	untilWithoutMachines(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	nodes, err := group.nodes(t.Context())
	if err != nil || len(nodes) != 2 {
		t.Fatalf("the autoscaler sees %d Nodes, error %v", len(nodes), err)
	}
	from := env.AuditEnd(t)
	if err := group.deleteNodes(t.Context(), nodes[0]); !errors.Is(err, errUnknownMachine) {
		t.Errorf("deleting a Node: %v, want %v", err, errUnknownMachine)
	}
	expectNodeChanges(t, from, name, 0)
}

// A pool that requests Machines gets no Machines while one of its shards has an old server, and
// gets them when that shard is removed from the pool.
func TestOldServerLeavesPool(t *testing.T) {
	t.Parallel()
	const name = "leaves"
	watchOperator(t)
	createPool(t, name, 2, notScaled, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) {
		pool.Spec.Shards = []v1beta1.Identifier{v1beta1.Identifier(shardIDs[0]), oldShard}
		pool.Spec.MachineMode = v1beta1.MachineModeAlways
	})
	untilWithoutMachines(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	patchPool(t, name, fmt.Sprintf(`{"spec":{"shards":[%q]}}`, shardIDs[0]))
	untilRunning(t, name, 2)
	testcluster.Eventually(t, timeout, "it reports that it has Machines", func(ctx context.Context) error {
		if err := machinesAre(ctx, name, true, v1beta1.ReasonMachinesEnabled); err != nil {
			return err
		}
		pool, err := env.NstanceMachinePool(ctx, name)
		if err == nil && ptr.Deref(pool.Status.DesiredReplicas, -1) != 2 {
			err = fmt.Errorf("it wants %d", ptr.Deref(pool.Status.DesiredReplicas, -1))
		}
		return err
	})
}
