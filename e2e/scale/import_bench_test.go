// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1api "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// bareNamespace is where the same objects are written without an operator.
	bareNamespace = "bare"
	bareManager   = "bare"
	// bareWriters is how many groups are written at once: the workers of the
	// importer, the pools and the shard groups together.
	bareWriters = 16
	// mostOfBare is the most that an import may take, as a multiple of the time of the plain client.
	mostOfBare = 3
)

var (
	poolResource        = v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools")
	shardGroupResource  = v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups")
	machinePoolResource = clusterv1.GroupVersion.WithResource("machinepools")
)

// BenchmarkImport counts the writes that an import costs, and compares its time with a plain
// client that makes the same writes of the same objects, with the same owners, finalizers, events and
// calls of the webhook, watches them as every controller does, and does nothing else. Cluster API reconciles the MachinePools of both: an import
// includes most of its work, while the plain client is done long before Cluster API. So the time of both
// ends when nothing is written any more.
func BenchmarkImport(b *testing.B) {
	require.True(b, tier.Full(), "%s is not set", tier.FullVariable)
	for b.Loop() {
		result := mustImport(b)
		took := settled(b, installation.Namespace, result.from)
		templates := readTemplates(b)
		createBareCluster(b)
		createBareWebhook(b)
		stop := watchBare(b)
		from := env.AuditEnd(b)
		var writers errgroup.Group
		writers.SetLimit(bareWriters)
		for i := range groups {
			writers.Go(func() error { return templates.write(b.Context(), groupName(i)) })
		}
		require.NoError(b, writers.Wait())
		bare := settled(b, bareNamespace, from)
		stop()

		objects, statuses := 0, 0
		for _, w := range result.writes {
			if w.Subresource == "status" {
				statuses++
			} else {
				objects++
			}
		}
		// One write for each object: a pool, a MachinePool and the shard groups, and one that
		// hands over the specs of the first two. All but the MachinePool have a status.
		mostObjects, mostStatuses := groups*(2*2+len(shardIDs)), groups*(1+len(shardIDs))
		if objects > mostObjects || statuses > mostStatuses || result.throttled > 0 {
			b.Errorf("%d writes of objects, %d of statuses and %v s of waiting for a rate limit, want at most %d, %d and 0",
				objects, statuses, result.throttled, mostObjects, mostStatuses)
		}
		b.ReportMetric(result.throttled, "throttled-s")
		b.ReportMetric(float64(objects)/float64(groups), "object-writes/group")
		b.ReportMetric(float64(statuses)/float64(groups), "status-writes/group")
		b.ReportMetric(took.Seconds(), "import-s")
		b.ReportMetric(bare.Seconds(), "bare-s")
		ratio := took.Seconds() / bare.Seconds()
		b.ReportMetric(ratio, "import/bare")
		if ratio > mostOfBare {
			b.Errorf("the import takes %.2f times the time of a plain client, want at most %v", ratio, mostOfBare)
		}
	}
}

// watchBare watches what the plain client writes, with caches as those of an operator, until stop is called.
func watchBare(b *testing.B) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(env.Dynamic, 0, bareNamespace, nil)
	for _, resource := range []schema.GroupVersionResource{poolResource, shardGroupResource, machinePoolResource} {
		factory.ForResource(resource).Informer()
	}
	factory.Start(ctx.Done())
	for resource, synced := range factory.WaitForCacheSync(ctx.Done()) {
		require.True(b, synced, "the cache of %s", resource)
	}
	return func() {
		cancel()
		factory.Shutdown()
	}
}

// settled waits until nothing is written to a namespace, and returns the time from the first write of a
// pool, a MachinePool or a shard group since from to the last, also of Cluster API.
func settled(b *testing.B, namespace string, from controlplane.Position) time.Duration {
	b.Helper()
	inNamespace := func(w controlplane.Write) bool { return w.Namespace == namespace }
	env.UntilNoWrites(b, timeout, 100, inNamespace)
	writes := env.Writes(b, from, inNamespace, ofGroups)
	require.NotEmpty(b, writes, "writes in namespace %s", namespace)
	return writes[len(writes)-1].Time.Sub(writes[0].Time)
}

// templates are the objects of one group as the operator has written them.
type templates struct {
	pool, machinePool *unstructured.Unstructured
	shardGroups       []*unstructured.Unstructured
}

func readTemplates(b *testing.B) templates {
	b.Helper()
	group := groupName(0)
	t := templates{pool: readBare(b, poolResource, group), machinePool: readBare(b, machinePoolResource, group)}
	for _, shard := range shardIDs {
		t.shardGroups = append(t.shardGroups, readBare(b, shardGroupResource, v1beta1.ShardGroupName(group, shard)))
	}
	return t
}

// readBare returns a copy of an object of the operator for the other namespace.
func readBare(b *testing.B, resource schema.GroupVersionResource, name string) *unstructured.Unstructured {
	b.Helper()
	object, err := env.Dynamic.Resource(resource).Namespace(installation.Namespace).Get(b.Context(), name, metav1.GetOptions{})
	require.NoError(b, err)
	labels := object.GetLabels()
	unstructured.RemoveNestedField(object.Object, "metadata")
	object.SetNamespace(bareNamespace)
	object.SetName(name)
	object.SetLabels(labels)
	return object
}

// createBareCluster copies the operator's Cluster, with the objects that Cluster API
// needs, and waits until Cluster API reports it available.
func createBareCluster(b *testing.B) {
	b.Helper()
	const name = installation.ClusterName
	namespace := corev1.Namespace(bareNamespace)
	if _, err := env.Kube.CoreV1().Namespaces().Apply(b.Context(), namespace, metav1.ApplyOptions{FieldManager: bareManager}); err != nil {
		b.Fatal(err)
	}
	clusters := clusterv1.GroupVersion.WithResource("clusters")
	for _, copied := range []struct {
		resource schema.GroupVersionResource
		name     string
	}{
		{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, name + "-kubeconfig"},
		{v1beta1.SchemeGroupVersion.WithResource("nstanceclusters"), name},
		{clusters, name},
	} {
		client := env.Dynamic.Resource(copied.resource).Namespace(bareNamespace)
		object := readBare(b, copied.resource, copied.name)
		require.NoError(b, applyWithStatus(b.Context(), client, object, copied.resource.Resource == "nstanceclusters"))
	}
	err := poll(b.Context(), "the copied Cluster is available", func(ctx context.Context) error {
		cluster, err := env.CAPI.Clusters(bareNamespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(cluster.Status.Conditions, clusterv1.ClusterAvailableCondition) {
			err = fmt.Errorf("its conditions are %+v", cluster.Status.Conditions)
		}
		return err
	})
	require.NoError(b, err)
}

// createBareWebhook lets the API server call the operator's webhook for the objects of the plain client.
// The webhook allows them, because they are in another namespace.
func createBareWebhook(b *testing.B) {
	b.Helper()
	webhooks := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := webhooks.Get(b.Context(), "nstance-operator", metav1.GetOptions{})
	require.NoError(b, err)
	require.NotEmpty(b, configuration.Webhooks)
	configuration.ObjectMeta = metav1.ObjectMeta{Name: bareManager}
	for n := range configuration.Webhooks {
		configuration.Webhooks[n].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1api.LabelMetadataName: bareNamespace}}
	}
	_, err = webhooks.Create(b.Context(), configuration, metav1.CreateOptions{})
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, webhooks.Delete(context.WithoutCancel(b.Context()), bareManager, metav1.DeleteOptions{}))
	})
}

// recordImport records an event about a pool, as the operator does for each import.
func recordImport(ctx context.Context, pool *unstructured.Unstructured) error {
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: bareNamespace, Name: pool.GetName() + ".imported"},
		EventTime:           metav1.NowMicro(),
		ReportingController: bareManager, ReportingInstance: bareManager,
		Action: "Import", Reason: "Imported", Type: corev1api.EventTypeNormal,
		Regarding: corev1api.ObjectReference{
			APIVersion: pool.GetAPIVersion(), Kind: pool.GetKind(), Namespace: bareNamespace, Name: pool.GetName(), UID: pool.GetUID(),
		},
		Note: fmt.Sprintf("group %q was imported: 0 instances on %d shards", pool.GetName(), len(shardIDs)),
	}
	if _, err := env.Kube.EventsV1().Events(bareNamespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("record the import of pool %s: %w", pool.GetName(), err)
	}
	return nil
}

// write writes the objects of a group and their statuses in the operator's order.
func (t templates) write(ctx context.Context, group string) error {
	pools := env.Dynamic.Resource(poolResource).Namespace(bareNamespace)
	pool := named(t.pool, group, group)
	created := withoutStatus(pool)
	created.SetFinalizers([]string{v1beta1.FinalizerMachinePool})
	created, err := pools.Create(ctx, created, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pool %s: %w", group, err)
	}
	if err := recordImport(ctx, created); err != nil {
		return err
	}
	machinePool := withoutStatus(named(t.machinePool, group, group))
	if err := unstructured.SetNestedField(machinePool.Object, group, "spec", "template", "spec", "infrastructureRef", "name"); err != nil {
		return err
	}
	machinePools := env.Dynamic.Resource(machinePoolResource).Namespace(bareNamespace)
	if _, err := machinePools.Create(ctx, machinePool, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create MachinePool %s: %w", group, err)
	}
	shardGroups := env.Dynamic.Resource(shardGroupResource).Namespace(bareNamespace)
	for i, shard := range shardIDs {
		object := named(t.shardGroups[i], v1beta1.ShardGroupName(group, shard), group)
		object.SetFinalizers([]string{v1beta1.FinalizerShardGroup})
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(created, created.GroupVersionKind())})
		if err := applyWithStatus(ctx, shardGroups, object, true); err != nil {
			return err
		}
	}
	for _, client := range []dynamic.ResourceInterface{pools, machinePools} {
		if err := disown(ctx, client, group); err != nil {
			return err
		}
	}
	_, err = pools.ApplyStatus(ctx, group, withoutSpec(pool), metav1.ApplyOptions{FieldManager: bareManager, Force: true})
	if err != nil {
		return fmt.Errorf("write the status of pool %s: %w", group, err)
	}
	return nil
}

// disown reads an object and gives up the ownership of its spec, as the operator does.
func disown(ctx context.Context, client dynamic.ResourceInterface, name string) error {
	object, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	patch := fmt.Sprintf(`{"metadata":{"managedFields":[{"manager":%q,"operation":"Update","apiVersion":%q,"fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:finalizers":{}}}}]}}`,
		bareManager, object.GetAPIVersion())
	if _, err := client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: bareManager}); err != nil {
		return fmt.Errorf("hand over %s: %w", name, err)
	}
	return nil
}

func applyWithStatus(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, status bool) error {
	options := metav1.ApplyOptions{FieldManager: bareManager, Force: true}
	if _, err := client.Apply(ctx, object.GetName(), withoutStatus(object), options); err != nil {
		return fmt.Errorf("apply %s: %w", object.GetName(), err)
	}
	if !status {
		return nil
	}
	if _, err := client.ApplyStatus(ctx, object.GetName(), withoutSpec(object), options); err != nil {
		return fmt.Errorf("write the status of %s: %w", object.GetName(), err)
	}
	return nil
}

// named is a copy of an object for another group.
func named(object *unstructured.Unstructured, name, group string) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetName(name)
	if _, found, _ := unstructured.NestedString(object.Object, "spec", "group"); found {
		_ = unstructured.SetNestedField(object.Object, group, "spec", "group")
	}
	return object
}

func withoutStatus(object *unstructured.Unstructured) *unstructured.Unstructured {
	return without(object, "status")
}

// withoutSpec is what the status of an object is written with.
func withoutSpec(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = without(object, "spec")
	object.SetFinalizers(nil)
	object.SetOwnerReferences(nil)
	return object
}

func without(object *unstructured.Unstructured, field string) *unstructured.Unstructured {
	object = object.DeepCopy()
	unstructured.RemoveNestedField(object.Object, field)
	return object
}
