// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	infrastructureclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
)

// Clients are the administrator's clients. The clients of a kind are for the namespace of the
// installation.
type Clients struct {
	Kube kubernetes.Interface
	// NodeKube is the client of Nodes and Pods, which may be in another cluster.
	NodeKube kubernetes.Interface
	Dynamic  dynamic.Interface
	CAPI     *capi.Client
	Nstance  versioned.Interface
}

func newClients(config *rest.Config) (c Clients, err error) {
	kube, kubeErr := kubernetes.NewForConfig(config)
	dynamicClient, dynamicErr := dynamic.NewForConfig(config)
	capiClient, capiErr := capi.NewForConfig(config)
	nstance, nstanceErr := versioned.NewForConfig(config)
	return Clients{Kube: kube, NodeKube: kube, Dynamic: dynamicClient, CAPI: capiClient, Nstance: nstance},
		errors.Join(kubeErr, dynamicErr, capiErr, nstanceErr)
}

// Clusters is the client of Cluster API's Clusters.
func (c Clients) Clusters() *capi.ClusterClient { return c.CAPI.Clusters(installation.Namespace) }

// MachinePools is the client of Cluster API's MachinePools.
func (c Clients) MachinePools() *capi.MachinePoolClient {
	return c.CAPI.MachinePools(installation.Namespace)
}

// Machines is the client of Cluster API's Machines.
func (c Clients) Machines() *capi.MachineClient { return c.CAPI.Machines(installation.Namespace) }

// ClusterAPI is the client of any resource of Cluster API's core group.
func (c Clients) ClusterAPI(resource string) dynamic.ResourceInterface {
	return c.Dynamic.Resource(clusterv1.GroupVersion.WithResource(resource)).Namespace(installation.Namespace)
}

// NstanceClusters is the client of NstanceClusters.
func (c Clients) NstanceClusters() infrastructureclient.NstanceClusterInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceClusters(installation.Namespace)
}

// NstanceMachinePools is the client of NstanceMachinePools.
func (c Clients) NstanceMachinePools() infrastructureclient.NstanceMachinePoolInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceMachinePools(installation.Namespace)
}

// NstanceShardGroups is the client of NstanceShardGroups.
func (c Clients) NstanceShardGroups() infrastructureclient.NstanceShardGroupInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceShardGroups(installation.Namespace)
}

// NstanceMachines is the client of NstanceMachines.
func (c Clients) NstanceMachines() infrastructureclient.NstanceMachineInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceMachines(installation.Namespace)
}

// NstanceMachineTemplates is the client of NstanceMachineTemplates.
func (c Clients) NstanceMachineTemplates() infrastructureclient.NstanceMachineTemplateInterface {
	return c.Nstance.InfrastructureV1beta1().NstanceMachineTemplates(installation.Namespace)
}

// NewMachinePool returns the MachinePool of the NstanceMachinePool of that name.
func NewMachinePool(name string, replicas int32) *clusterv1.MachinePool {
	return &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: installation.Namespace},
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: installation.ClusterName,
			Replicas:    &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: installation.ClusterName,
				Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: name,
				},
			}},
		},
	}
}

// NewNstanceMachinePool returns a pool whose group has the name of the pool.
func NewNstanceMachinePool(name string, shards ...string) *v1beta1.NstanceMachinePool {
	pool := &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: installation.Namespace},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(name), GroupSettings: v1beta1.GroupSettings{Template: "worker"}},
	}
	for _, shard := range shards {
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(shard))
	}
	return pool
}

// CreatePool creates a MachinePool and its NstanceMachinePool.
func (c Clients) CreatePool(ctx context.Context, machinePool *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) error {
	if _, err := c.MachinePools().Create(ctx, machinePool, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.NstanceMachinePools().Create(ctx, pool, metav1.CreateOptions{})
	return err
}

// Scale sets the replicas of a MachinePool as kubectl scale does.
func (c Clients) Scale(t testing.TB, name string, replicas int32) {
	t.Helper()
	c.PatchMachinePool(t, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas), "scale")
}

// PatchMachinePool merges a patch into a MachinePool or one of its subresources.
func (c Clients) PatchMachinePool(t testing.TB, name, patch string, subresources ...string) {
	t.Helper()
	_, err := c.ClusterAPI("machinepools").
		Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	require.NoError(t, err)
}

// NstanceMachinePool reads a pool.
func (c Clients) NstanceMachinePool(ctx context.Context, name string) (*v1beta1.NstanceMachinePool, error) {
	return c.NstanceMachinePools().Get(ctx, name, metav1.GetOptions{})
}

// PatchNstanceMachinePool merges a patch into a pool, and returns the patched pool.
func (c Clients) PatchNstanceMachinePool(ctx context.Context, name, patch string) (*v1beta1.NstanceMachinePool, error) {
	return c.NstanceMachinePools().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
}

// ShardGroup reads the shard group of a group on a shard.
func (c Clients) ShardGroup(ctx context.Context, group, shard string) (*v1beta1.NstanceShardGroup, error) {
	return c.NstanceShardGroups().Get(ctx, v1beta1.ShardGroupName(group, shard), metav1.GetOptions{})
}

// ShardGroups lists the shard groups of a group, sorted by name.
func (c Clients) ShardGroups(ctx context.Context, group string) ([]v1beta1.NstanceShardGroup, error) {
	list, err := c.NstanceShardGroups().List(ctx, inGroup(group))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Nodes lists the Nodes of a group.
func (c Clients) Nodes(ctx context.Context, group string) ([]corev1.Node, error) {
	list, err := c.NodeKube.CoreV1().Nodes().List(ctx, inGroup(group))
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func inGroup(name string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + name}
}

// IsReady reports whether a Node is ready.
func IsReady(node corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// CreateNamespace creates a namespace of Pods and waits until Pods can be created in it.
func (c Clients) CreateNamespace(t testing.TB, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.NodeKube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	Eventually(t, time.Minute, "namespace "+name+" has a ServiceAccount", func(ctx context.Context) error {
		_, err := c.NodeKube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// SetShardAddress sets where operators find a shard. An empty address removes the
// shard from their configuration.
func (c Clients) SetShardAddress(ctx context.Context, shard, address string) error {
	patch := fmt.Sprintf(`{"data":{%q:%q}}`, shard, address)
	if address == "" {
		patch = fmt.Sprintf(`{"data":{%q:null,%q:null}}`, shard, shard+".registration")
	}
	_, err := c.Kube.CoreV1().ConfigMaps(installation.Namespace).Patch(ctx, "nstance-shards",
		types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// MachineDeleted succeeds when a Machine, its NstanceMachine and its Node are deleted. node is ""
// if the machine never had a Node.
func (c Clients) MachineDeleted(ctx context.Context, name, node string) error {
	_, err := c.Machines().Get(ctx, name, metav1.GetOptions{})
	if err := NotFound("the Machine", err); err != nil {
		return err
	}
	_, err = c.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
	if err := NotFound("the NstanceMachine", err); err != nil || node == "" {
		return err
	}
	_, err = c.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	return NotFound("the Node", err)
}

// CreateMachine creates a Machine and its NstanceMachine, as a user does who wants a single
// instance of a group. An empty instance type means the group's.
func (c Clients) CreateMachine(t testing.TB, name, group, instanceType string) {
	t.Helper()
	named := metav1.ObjectMeta{Name: name, Namespace: installation.Namespace}
	_, err := c.NstanceMachines().Create(t.Context(), &v1beta1.NstanceMachine{
		ObjectMeta: named,
		Spec:       v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: v1beta1.Identifier(group)}, InstanceType: instanceType},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.Machines().Create(t.Context(), &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: named,
		Spec: clusterv1.MachineSpec{
			ClusterName:       installation.ClusterName,
			Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: name},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// CreateHealthCheck creates a MachineHealthCheck of a pool until the end of the test. A Machine whose
// Node is not ready for a second, or is deleted, is replaced.
func (c Clients) CreateHealthCheck(t testing.TB, pool string) {
	t.Helper()
	check := &clusterv1.MachineHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: pool},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: installation.ClusterName,
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachinePoolNameLabel: capi.LabelValue(pool)}},
			Checks: clusterv1.MachineHealthCheckChecks{
				UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionFalse, TimeoutSeconds: ptr.To[int32](1)},
				},
			},
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(check)
	require.NoError(t, err)
	checks := c.ClusterAPI("machinehealthchecks")
	_, err = checks.Create(t.Context(), &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, checks.Delete(context.WithoutCancel(t.Context()), pool, metav1.DeleteOptions{}))
	})
}

// HasCondition succeeds when there is a condition with this status and reason.
func HasCondition(conditions []metav1.Condition, kind string, status metav1.ConditionStatus, reason string) error {
	condition := meta.FindStatusCondition(conditions, kind)
	if condition == nil || condition.Status != status || condition.Reason != reason {
		return fmt.Errorf("condition %s is %+v, want %s for %s", kind, condition, status, reason)
	}
	return nil
}

// CountEvents counts the events for an object, repetitions included.
func (c Clients) CountEvents(ctx context.Context, name, reason string) (int, error) {
	list, err := c.Kube.EventsV1().Events(installation.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "regarding.name=" + name + ",reason=" + reason,
	})
	if err != nil {
		return 0, err
	}
	count := 0
	for _, event := range list.Items {
		count++
		if event.Series != nil {
			count += int(event.Series.Count)
		}
	}
	return count, nil
}

// NotFound returns nil if err is NotFound, and otherwise an error: the object exists, or err.
func NotFound(object string, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(errors.New(object+" exists"), err)
}
