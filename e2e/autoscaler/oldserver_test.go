// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
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

// dropExtensions removes from a message what a peer without extensions does not know.
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

// A pool that requests Machines gets none on an old server either, and gets them when
// that shard is removed from the pool.
func TestOldServerLeavesPool(t *testing.T) {
	t.Parallel()
	const name = "leaves"
	watchOperator(t)
	createPool(t, name, 2, notScaled, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) {
		pool.Spec.Shards = []v1beta1.Identifier{v1beta1.Identifier(shardIDs[0]), oldShard}
		pool.Spec.Machines = v1beta1.MachinesAlways
	})
	untilWithoutMachines(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	patchPool(t, name, fmt.Sprintf(`{"spec":{"shards":[%q]}}`, shardIDs[0]))
	untilRunning(t, name, 2)
	testcluster.Eventually(t, timeout, "it reports that it has Machines", func(ctx context.Context) error {
		if err := machinesAre(ctx, name, metav1.ConditionTrue, v1beta1.ReasonMachinesEnabled); err != nil {
			return err
		}
		pool, err := env.NstanceMachinePool(ctx, name)
		if err == nil && ptr.Deref(pool.Status.DesiredReplicas, -1) != 2 {
			err = fmt.Errorf("it wants %d", ptr.Deref(pool.Status.DesiredReplicas, -1))
		}
		return err
	})
}
