// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// createGroup creates a pool whose group of the same name is on one shard, and
// returns the names of its Nodes when all of them are ready. They are those of
// the instances.
func createGroup(t testing.TB, shard, name string, size int32) []string {
	t.Helper()
	_, err := env.MachinePools().Create(t.Context(), testcluster.NewMachinePool(name, size), metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "the pool is created", func(ctx context.Context) error {
		// The webhook rejects it until the operator knows the shard.
		_, err := env.NstanceMachinePools().Create(ctx, testcluster.NewNstanceMachinePool(name, shard), metav1.CreateOptions{})
		return err
	})
	return readyNodes(t, name, int(size))
}

// readyNodes waits until a group has that many Nodes and all are ready, and
// returns their names, the oldest instance first.
func readyNodes(t testing.TB, group string, count int) []string {
	t.Helper()
	var names []string
	testcluster.Eventually(t, timeout, fmt.Sprintf("group %s has %d ready Nodes", group, count), func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, group)
		if err != nil {
			return err
		}
		names = nil
		for _, node := range nodes {
			if testcluster.IsReady(node) {
				names = append(names, node.Name)
			}
		}
		if len(nodes) != count || len(names) != count {
			return fmt.Errorf("%d of %d are ready", len(names), len(nodes))
		}
		return nil
	})
	slices.Sort(names) // ids begin with the time
	return names
}

// setProviderStatus sets the provider's status of the instance of a Node, which is
// healthy with "".
func setProviderStatus(t testing.TB, node, status string) {
	t.Helper()
	value := "null"
	if status != "" {
		value = fmt.Sprintf("%q", status)
	}
	patchNode(t, node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, kwok.AnnotationProviderStatus, value))
}

func patchNode(t testing.TB, node, patch string) {
	t.Helper()
	_, err := env.Kube.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// cordoned succeeds when a Node is unschedulable and annotated with the instance it
// was cordoned for, or with "" when an administrator has cordoned it.
func cordoned(ctx context.Context, node, mark string) error {
	found, err := env.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := found.Annotations[v1beta1.AnnotationCordonedFor]; !found.Spec.Unschedulable || got != mark {
		return fmt.Errorf("Node %s: unschedulable %t, annotated %q; want it unschedulable and annotated %q", node, found.Spec.Unschedulable, got, mark)
	}
	return nil
}

// progress returns the condition of a shard group's drains.
func progress(ctx context.Context, shard, group string) (metav1.Condition, error) {
	found, err := env.ShardGroup(ctx, group, shard)
	if err != nil {
		return metav1.Condition{}, err
	}
	condition := meta.FindStatusCondition(found.Status.Conditions, v1beta1.ConditionDrainsProgressing)
	if condition == nil {
		return metav1.Condition{}, fmt.Errorf("shard group %s has no condition %s", found.Name, v1beta1.ConditionDrainsProgressing)
	}
	return *condition, nil
}

// untilDrained waits until the drain of an instance on the steady shard was
// acknowledged and the instance deleted. It fails the test when the acknowledgement
// came too late, or while there was still a Pod to evict.
func untilDrained(t testing.TB, instance string) drain {
	t.Helper()
	var d drain
	testcluster.Eventually(t, timeout, "the drain is acknowledged and the instance is deleted", func(context.Context) error {
		var known bool
		d, known = env.drains[steadyShard].ofInstance(instance)
		if !known || len(d.Acknowledged) == 0 || d.Deleted.IsZero() {
			return fmt.Errorf("known %t, acknowledged %d times, deleted at %v", known, len(d.Acknowledged), d.Deleted)
		}
		return nil
	})
	expectValidAcknowledgement(t, d)
	return d
}

// expectValidAcknowledgement fails the test unless a drain was acknowledged in
// time, and when nothing was left to evict.
func expectValidAcknowledgement(t testing.TB, d drain) {
	t.Helper()
	if len(d.Acknowledged) == 0 {
		t.Errorf("instance %s was not acknowledged", d.Instance)
	} else if late := d.Acknowledged[0].At.Sub(d.DeleteAt); late >= 0 {
		t.Errorf("instance %s was acknowledged %s too late", d.Instance, late)
	}
	for _, a := range d.Acknowledged {
		for _, pod := range a.Pods {
			if evictable(&pod) {
				t.Errorf("instance %s was acknowledged while Pod %s/%s was on its Node", d.Instance, pod.Namespace, pod.Name)
			}
		}
	}
}
