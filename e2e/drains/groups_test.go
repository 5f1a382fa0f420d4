// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/instance/kwok"
)

// createGroup makes a pool whose group of the same name is on one shard, and
// returns the names of its Nodes when all of them are ready. They are those of
// the instances.
func createGroup(t testing.TB, shard, name string, size int32) []string {
	t.Helper()
	_, err := env.capi.MachinePools(nstance.Namespace).Create(t.Context(), &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: nstance.Namespace},
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: clusterName,
			Replicas:    &size,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: clusterName,
				Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: v1beta1.GroupName, Kind: "NstanceMachinePool", Name: name,
				},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pool is made", func(ctx context.Context) error {
		// The webhook refuses it as long as it does not know the shard.
		_, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).Create(ctx, &v1beta1.NstanceMachinePool{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: nstance.Namespace},
			Spec: v1beta1.NstanceMachinePoolSpec{
				Group: v1beta1.Identifier(name), Template: "worker", Shards: []v1beta1.Identifier{v1beta1.Identifier(shard)},
			},
		}, metav1.CreateOptions{})
		return err
	})
	return readyNodes(t, name, int(size))
}

const clusterName = nstance.ClusterID + "--" + nstance.Tenant

// readyNodes waits until a group has that many Nodes and all are ready, and
// returns their names, the oldest instance first.
func readyNodes(t testing.TB, group string, count int) []string {
	t.Helper()
	var names []string
	eventually(t, fmt.Sprintf("group %s has %d ready Nodes", group, count), func(ctx context.Context) error {
		list, err := env.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + group})
		if err != nil {
			return err
		}
		names = nil
		for _, node := range list.Items {
			if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				names = append(names, node.Name)
			}
		}
		if len(list.Items) != count || len(names) != count {
			return fmt.Errorf("%d of %d are ready", len(names), len(list.Items))
		}
		return nil
	})
	slices.Sort(names) // ids begin with the time
	return names
}

// scale does what kubectl scale does.
func scale(t testing.TB, name string, replicas int) {
	t.Helper()
	_, err := env.dynamic.Resource(clusterv1.GroupVersion.WithResource("machinepools")).Namespace(nstance.Namespace).
		Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{}, "scale")
	if err != nil {
		t.Fatal(err)
	}
}

// setProviderStatus makes the machine of a Node ill, or well with "".
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
	_, err := env.kube.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// cordoned succeeds when new Pods are kept from a Node, and it is marked with
// what it was cordoned for. Nobody marks what an administrator has cordoned: the
// mark is "" then.
func cordoned(ctx context.Context, node, mark string) error {
	found, err := env.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if got := found.Annotations[v1beta1.AnnotationCordonedFor]; !found.Spec.Unschedulable || got != mark {
		return fmt.Errorf("Node %s: unschedulable %t, marked %q; want it to be, with %q", node, found.Spec.Unschedulable, got, mark)
	}
	return nil
}

// progress returns what a shard group says of its drains.
func progress(ctx context.Context, shard, group string) (metav1.Condition, error) {
	found, err := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).
		Get(ctx, v1beta1.ShardGroupName(group, shard), metav1.GetOptions{})
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
// acknowledged and the instance ended. It fails the test when the acknowledgement
// came too late, or while there was still a Pod to evict.
func untilDrained(t testing.TB, instance string) drain {
	t.Helper()
	var d drain
	eventually(t, "the drain is acknowledged and the instance ends", func(context.Context) error {
		var known bool
		d, known = env.relays[steadyShard].drain(of(instance))
		if !known || len(d.Acknowledged) == 0 || d.Ended.IsZero() {
			return fmt.Errorf("known %t, acknowledged %d times, ended at %v", known, len(d.Acknowledged), d.Ended)
		}
		return nil
	})
	expectHonest(t, d)
	return d
}

// expectHonest fails the test unless a drain was acknowledged in time, and when
// nothing was left to evict.
func expectHonest(t testing.TB, d drain) {
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
