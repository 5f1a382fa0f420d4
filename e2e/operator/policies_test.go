// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

// The annotations with which the deletion of an object is accepted.
const (
	confirmDeletion = v1beta1.AnnotationConfirmDeletion
	deleteForMove   = "clusterctl.cluster.x-k8s.io/delete-for-move"
)

// deletable is an object that a policy may protect.
type deletable struct {
	kind, name string
}

// delete deletes an object as a user, or as the administrator if user is "".
func (d deletable) delete(ctx context.Context, user string, options metav1.DeleteOptions) error {
	config := rest.CopyConfig(env.AdminConfig())
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	}
	if d.kind == "MachinePool" {
		client, err := capi.NewForConfig(config)
		if err != nil {
			return err
		}
		return client.MachinePools(installation.Namespace).Delete(ctx, d.name, options)
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	switch d.kind {
	case "NstanceShardGroup":
		return client.InfrastructureV1beta1().NstanceShardGroups(installation.Namespace).Delete(ctx, d.name, options)
	case v1beta1.MachineKind:
		return client.InfrastructureV1beta1().NstanceMachines(installation.Namespace).Delete(ctx, d.name, options)
	}
	return client.InfrastructureV1beta1().NstanceMachinePools(installation.Namespace).Delete(ctx, d.name, options)
}

// annotate sets an annotation, or removes it if value is nil.
func (d deletable) annotate(t *testing.T, key string, value *string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{key: value}}})
	require.NoError(t, err)
	resource := v1beta1.SchemeGroupVersion.WithResource(strings.ToLower(d.kind) + "s")
	if d.kind == "MachinePool" {
		resource = clusterv1.GroupVersion.WithResource("machinepools")
	}
	_, err = env.Dynamic.Resource(resource).Namespace(installation.Namespace).
		Patch(t.Context(), d.name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

// The API server itself protects static pools and shard groups from deletion, while
// neither the operator nor its webhook runs.
func TestDeletionPolicies(t *testing.T) {
	const name, open = "guarded", "open"
	runWithoutOperator(t, name, open)
	// The server has no such group in its configuration, so that the operator deletes it
	// at the end.
	_, err := env.NstanceMachinePools().Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"status":{"isStatic":true}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	pool, machinePool := deletable{v1beta1.PoolKind, name}, deletable{"MachinePool", name}
	shardGroup := deletable{"NstanceShardGroup", v1beta1.ShardGroupName(open, shardIDs[0])}
	// The API server evaluates the rule for a MachinePool with a cache of the pools.
	testcluster.Eventually(t, time.Minute, "deleting the MachinePool is rejected", func(ctx context.Context) error {
		return forbidden(machinePool.delete(ctx, "", dry), `group "guarded" is static`)
	})

	t.Run("by user", func(t *testing.T) {
		const controllers = "system:serviceaccount:kube-system:"
		all := []deletable{pool, machinePool, shardGroup}
		for user, allowed := range map[string][]deletable{
			"":                        nil,
			"system:anyone":           nil,
			capiManager:               {pool, machinePool},
			installation.OperatorUser: {machinePool, shardGroup},
			"system:serviceaccount:elsewhere:nstance-operator": nil,
			controllers + "namespace-controller":               all,
			controllers + "generic-garbage-collector":          all,
			controllers + "replicaset-controller":              nil,
			"system:kube-controller-manager":                   all,
		} {
			for _, object := range all {
				err := object.delete(t.Context(), user, dry)
				if slices.Contains(allowed, object) {
					require.NoError(t, err, "%q deletes %s", user, object.kind)
				} else if err := forbidden(err, object.kind+` "`+object.name+`"`); err != nil {
					t.Errorf("%q deletes %s: %v", user, object.kind, err)
				}
			}
		}
	})

	t.Run("reasons", func(t *testing.T) {
		operator := rest.CopyConfig(env.AdminConfig())
		operator.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + installation.Namespace + ":nstance-operator", Groups: []string{"system:masters"},
		}
		client, err := versioned.NewForConfig(operator)
		require.NoError(t, err)
		for object, reason := range map[deletable]string{
			pool:        "remove it from there first, or set its limits.min_size to 0 there and scale the MachinePool to 0",
			machinePool: "remove it from there first, or set its limits.min_size to 0 there and scale the MachinePool to 0",
			shardGroup:  "set its annotation nstance.dev/confirm-deletion to its name",
		} {
			if err := forbidden(object.delete(t.Context(), "", dry), reason); err != nil {
				t.Error(err)
			}
		}
		for _, consequence := range []struct{ policy, reason string }{
			{`"Retain"`, "its deletion leaves the group and its instances on the shard"},
			{"null", "its deletion terminates the instances of the group on the shard, unless spec.deletionPolicy of its pool is Retain;"},
		} {
			_, err := client.InfrastructureV1beta1().NstanceShardGroups(installation.Namespace).Patch(t.Context(), shardGroup.name, types.MergePatchType,
				fmt.Appendf(nil, `{"spec":{"deletionPolicy":%s}}`, consequence.policy), metav1.PatchOptions{})
			require.NoError(t, err)
			if err := forbidden(shardGroup.delete(t.Context(), "", dry), consequence.reason); err != nil {
				t.Errorf("with deletionPolicy %s: %v", consequence.policy, err)
			}
		}
	})

	t.Run("all of a kind", func(t *testing.T) {
		only := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
		err := env.NstanceMachinePools().DeleteCollection(t.Context(), dry, only)
		if err := forbidden(err, name); err != nil {
			t.Error(err)
		}
	})

	t.Run("a dynamic pool", func(t *testing.T) {
		for _, object := range []deletable{{v1beta1.PoolKind, open}, {"MachinePool", open}} {
			require.NoError(t, object.delete(t.Context(), "", dry))
		}
	})

	t.Run("by annotation", func(t *testing.T) {
		for _, object := range []deletable{pool, machinePool, shardGroup} {
			object.annotate(t, confirmDeletion, ptr.To("another"))
			if err := forbidden(object.delete(t.Context(), "", dry), object.name); err != nil {
				t.Errorf("with the name of another object: %v", err)
			}
			object.annotate(t, confirmDeletion, &object.name)
			require.NoError(t, object.delete(t.Context(), "", dry), object.kind)
			object.annotate(t, confirmDeletion, nil)
			object.annotate(t, deleteForMove, ptr.To(""))
			require.NoError(t, object.delete(t.Context(), "", dry), object.kind)
			object.annotate(t, deleteForMove, nil)
		}
	})

	t.Run("again", func(t *testing.T) {
		for _, object := range []deletable{shardGroup, pool} {
			object.annotate(t, confirmDeletion, &object.name)
			require.NoError(t, object.delete(t.Context(), "", metav1.DeleteOptions{}))
			object.annotate(t, confirmDeletion, nil)
			require.NoError(t, object.delete(t.Context(), "", dry))
		}
		testcluster.Eventually(t, time.Minute, "the MachinePool of a pool that is being deleted may be deleted",
			func(ctx context.Context) error { return machinePool.delete(ctx, "", dry) })
	})
}

// runWithoutOperator creates pools of two instances, and stops the operator until the end of
// the test.
func runWithoutOperator(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		runPool(t, name, 2, shardIDs[0])
		t.Cleanup(func() { deletePools(t, name) })
	}
	testcluster.Stop(t, env.OperatorProcess())
}

// The API server itself rejects mistaken replicas, while neither the operator
// nor its webhook runs.
func TestReplicasPolicy(t *testing.T) {
	const name, limit = "counted", "the limit is 10000"
	runWithoutOperator(t, name)
	before, err := env.Group(t.Context(), shardIDs[0], name)
	require.NoError(t, err)

	t.Run("a limit", func(t *testing.T) {
		output, err := env.KubectlCommand(t.Context(), "scale", "machinepool", name, "--replicas=2147483647").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(output), `MachinePool "counted" cannot have 2147483647 replicas: `+limit)
		for replicas, want := range map[int32]bool{10000: true, 10001: false} {
			for how, write := range map[string]func() error{
				"edit":   func() error { return patchReplicasDry(t.Context(), name, fmt.Sprint(replicas)) },
				"scale":  func() error { return patchReplicasDry(t.Context(), name, fmt.Sprint(replicas), "scale") },
				"create": func() error { return createMachinePoolDry(t.Context(), installation.Namespace, replicas) },
			} {
				err := write()
				if want {
					require.NoError(t, err, how)
				} else if err := invalid(err, limit); err != nil {
					t.Errorf("%s: %v", how, err)
				}
			}
		}
		require.NoError(t, createMachinePoolDry(t.Context(), metav1.NamespaceDefault, 10001), "in another namespace")
	})

	t.Run("removed", func(t *testing.T) {
		const rejection = "spec.replicas is required: without a number Cluster API makes 1 of the present 2"
		if err := invalid(patchReplicasDry(t.Context(), name, "null"), rejection); err != nil {
			t.Error(err)
		}
		// Replicas that were set by scaling have no field manager.
		env.Scale(t, name, 3)
		env.Scale(t, name, 2)
		if err := invalid(patchReplicasDry(t.Context(), name, "null"), rejection); err != nil {
			t.Errorf("after scaling: %v", err)
		}
		require.NoError(t, patchReplicasDry(t.Context(), name, "1"))
		require.NoError(t, patchReplicasDry(t.Context(), name, "1", "scale"))
		env.PatchMachinePool(t, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"1"}}}`, clusterv1.AutoscalerMinSizeAnnotation))
		if err := invalid(patchReplicasDry(t.Context(), name, "null"), rejection); err != nil {
			t.Errorf("with one annotation of the autoscaler: %v", err)
		}
		env.PatchMachinePool(t, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"5"}}}`, clusterv1.AutoscalerMaxSizeAnnotation))
		require.NoError(t, patchReplicasDry(t.Context(), name, "null"))
	})

	t.Run("of other infrastructure", func(t *testing.T) {
		other := unreconciled("other-infrastructure", 3)
		other.Spec.Template.Spec.InfrastructureRef.Kind = "OtherMachinePool"
		create(t, other)
		require.NoError(t, patchReplicasDry(t.Context(), other.Name, "null"))
	})

	t.Run("of a large pool", func(t *testing.T) {
		bindings := env.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
		binding, err := bindings.Get(t.Context(), "nstance-operator-replicas", metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
		testcluster.Eventually(t, time.Minute, "there is no limit", func(ctx context.Context) error {
			return createMachinePoolDry(ctx, installation.Namespace, 10001)
		})
		large := create(t, unreconciled("large", 20000))
		binding.ResourceVersion, binding.UID = "", ""
		_, err = bindings.Create(t.Context(), binding, metav1.CreateOptions{})
		require.NoError(t, err)
		testcluster.Eventually(t, time.Minute, "there is a limit again", func(ctx context.Context) error {
			return invalid(createMachinePoolDry(ctx, installation.Namespace, 10001), limit)
		})
		for replicas, want := range map[string]bool{"20000": true, "15000": true, "20001": false} {
			for _, subresources := range [][]string{nil, {"scale"}} {
				err := patchReplicasDry(t.Context(), large.Name, replicas, subresources...)
				if want {
					require.NoError(t, err, replicas)
				} else if err := invalid(err, limit); err != nil {
					t.Error(err)
				}
			}
		}
	})

	after, err := env.Group(t.Context(), shardIDs[0], name)
	require.NoError(t, err)
	require.Equal(t, before.GetSize(), after.GetSize(), "size of the group")
	require.NoError(t, env.SizesAre(t.Context(), name, 2))
}

func patchReplicasDry(ctx context.Context, name, replicas string, subresources ...string) error {
	_, err := env.ClusterAPI("machinepools").Patch(ctx, name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%s}}`, replicas), metav1.PatchOptions{DryRun: dry.DryRun}, subresources...)
	return err
}

func createMachinePoolDry(ctx context.Context, namespace string, replicas int32) error {
	machinePool := testcluster.NewMachinePool("new", replicas)
	machinePool.Namespace = namespace
	_, err := env.CAPI.MachinePools(namespace).Create(ctx, machinePool, metav1.CreateOptions{DryRun: dry.DryRun})
	return err
}

// unreconciled returns a MachinePool that Cluster API leaves as it is.
func unreconciled(name string, replicas int32) *clusterv1.MachinePool {
	machinePool := testcluster.NewMachinePool(name, replicas)
	machinePool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	return machinePool
}

// create creates a MachinePool until the end of the test.
func create(t *testing.T, machinePool *clusterv1.MachinePool) *clusterv1.MachinePool {
	t.Helper()
	created, err := env.MachinePools().Create(t.Context(), machinePool, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, env.MachinePools().Delete(context.WithoutCancel(t.Context()), created.Name, metav1.DeleteOptions{}))
	})
	return created
}

// The type checking of the API server finds no mistake in the expressions of the policies
// (https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#type-checking).
func TestPoliciesHaveNoWarnings(t *testing.T) {
	t.Parallel()
	testcluster.Eventually(t, time.Minute, "the policies are type checked", func(ctx context.Context) error {
		policies, err := env.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(policies.Items) != 11 {
			return fmt.Errorf("%d policies, want 11", len(policies.Items))
		}
		for _, policy := range policies.Items {
			if policy.Status.ObservedGeneration != policy.Generation || policy.Status.TypeChecking == nil {
				return fmt.Errorf("%s is not type checked", policy.Name)
			}
			for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
				err = errors.Join(err, fmt.Errorf("%s: %s: %s", policy.Name, warning.FieldRef, warning.Warning))
			}
		}
		return err
	})
}

// Fields of Cluster API's MachinePool that have no effect are a warning.
func TestWarningsAboutUnusedFields(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fields string
		want   string
	}{
		"nothing unused":  {`"template": {"spec": {%s}}`, ""},
		"failure domains": {`"failureDomains": ["us-west-2a"], "template": {"spec": {%s}}`, "spec.failureDomains has no effect"},
		"a version":       {`"template": {"spec": {%s, "version": "v1.36.0"}}`, "spec.template.spec.version has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			const template = `"clusterName": "any", "bootstrap": {"dataSecretName": ""},
				"infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": "unused"}`
			expectWarning(t, fmt.Sprintf(test.fields, template), test.want)
		})
	}
	t.Run("bootstrap data", func(t *testing.T) {
		expectWarning(t, `"template": {"spec": {"clusterName": "any", "bootstrap": {"dataSecretName": "mine"},
			"infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": "unused"}}}`,
			"spec.template.spec.bootstrap is not used")
	})
}

// A pool where no operator looks is a warning, which names the namespace. The namespaces of operators have a
// label.
func TestWarningAboutOtherNamespaces(t *testing.T) {
	t.Parallel()
	create := func(namespace string) string {
		pool := testcluster.NewNstanceMachinePool("elsewhere", shardIDs...)
		pool.Namespace, pool.APIVersion, pool.Kind = namespace, v1beta1.SchemeGroupVersion.String(), "NstanceMachinePool"
		text, err := json.Marshal(pool)
		require.NoError(t, err)
		command := env.KubectlCommand(t.Context(), "create", "--namespace", namespace, "--dry-run=server", "-f", "-")
		command.Stdin = strings.NewReader(string(text))
		output, err := command.CombinedOutput()
		require.NoError(t, err, string(output))
		return string(output)
	}
	const want = `no operator watches namespace "elsewhere": there will be no instances for "elsewhere"`
	env.CreateNamespace(t, "elsewhere")
	testcluster.Eventually(t, time.Minute, "the warning", func(context.Context) error {
		if output := create("elsewhere"); !strings.Contains(output, "Warning: ") || !strings.Contains(output, want) {
			return fmt.Errorf("kubectl printed %s", output)
		}
		return nil
	})
	require.NotContains(t, create(installation.Namespace), "Warning:")
	env.Kubectl(t, "label", "namespace", "elsewhere", "nstance.dev/operator=true")
	testcluster.Eventually(t, time.Minute, "no warning", func(context.Context) error {
		if output := create("elsewhere"); strings.Contains(output, "Warning:") {
			return fmt.Errorf("kubectl printed %s", output)
		}
		return nil
	})
}

// expectWarning creates a MachinePool with these fields of the spec in a dry run, and compares
// the warning.
func expectWarning(t *testing.T, fields, want string) {
	t.Helper()
	command := env.KubectlCommand(t.Context(), "create", "--dry-run=server", "-f", "-")
	command.Stdin = strings.NewReader(fmt.Sprintf(`{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool",
		"metadata": {"name": "unused", "namespace": %q}, "spec": {"clusterName": "any", "replicas": 1, %s}}`, installation.Namespace, fields))
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
	if want == "" {
		require.NotContains(t, string(output), "Warning:")
		return
	}
	require.Contains(t, string(output), "Warning:")
	require.Contains(t, string(output), want)
}

// capiManager is the account of Cluster API.
const capiManager = "system:serviceaccount:capi-system:capi-manager"

// The API server itself protects the infrastructure of a Machine from deletion, because its
// Node would not be drained.
func TestDeletionPolicyOfNstanceMachines(t *testing.T) {
	testcluster.Stop(t, env.OperatorProcess())
	machine := createMachineOwner(t, "some-machine")
	owned := createNstanceMachine(t, "owned", controlling(machine))
	const reason = `NstanceMachine "owned" is the infrastructure of Machine "some-machine": delete the Machine instead, its Node is drained first`
	testcluster.Eventually(t, time.Minute, "the deletion is rejected", func(ctx context.Context) error {
		return forbidden(owned.delete(ctx, "", dry), reason)
	})

	t.Run("by user", func(t *testing.T) {
		const controllers = "system:serviceaccount:kube-system:"
		for user, allowed := range map[string]bool{
			"":              false,
			"system:anyone": false,
			"system:serviceaccount:capi-system:capi-manager":   true,
			installation.OperatorUser:                          true,
			"system:serviceaccount:elsewhere:nstance-operator": false,
			controllers + "namespace-controller":               true,
			// It would delete the objects of a Machine before Cluster API has drained the Node.
			controllers + "generic-garbage-collector": false,
			controllers + "replicaset-controller":     false,
			"system:kube-controller-manager":          false,
		} {
			err := owned.delete(t.Context(), user, dry)
			if allowed {
				require.NoError(t, err, "%q", user)
			} else if err := forbidden(err, reason); err != nil {
				t.Errorf("%q: %v", user, err)
			}
		}
	})

	t.Run("by owner", func(t *testing.T) {
		elsewhere := controlling(machine)
		elsewhere.APIVersion = "machine.example.com/v1beta2"
		for name, owner := range map[string]metav1.OwnerReference{"not-controlled": machine, "of-another-group": elsewhere} {
			require.NoError(t, createNstanceMachine(t, name, owner).delete(t.Context(), "", dry), name)
		}
		require.NoError(t, createNstanceMachine(t, "not-owned").delete(t.Context(), "", dry))
	})

	t.Run("by annotation", func(t *testing.T) {
		owned.annotate(t, confirmDeletion, ptr.To("another"))
		if err := forbidden(owned.delete(t.Context(), "", dry), reason); err != nil {
			t.Errorf("with the name of another object: %v", err)
		}
		owned.annotate(t, confirmDeletion, &owned.name)
		require.NoError(t, owned.delete(t.Context(), "", dry))
		require.NoError(t, owned.delete(t.Context(), "system:serviceaccount:kube-system:generic-garbage-collector", dry))
		owned.annotate(t, confirmDeletion, nil)
		owned.annotate(t, deleteForMove, ptr.To(""))
		require.NoError(t, owned.delete(t.Context(), "", dry))
		owned.annotate(t, deleteForMove, nil)
	})
}

// The API server of the tests lets only those change the owners of an object who may delete it, as
// OpenShift's does. The operator adds the MachinePools to the owners of a pool that is being deleted.
func TestOperatorMayChangeTheOwnersOfAPool(t *testing.T) {
	t.Parallel()
	const name = "disowned"
	env.CreatePoolForTest(t, name, 0)
	_, err := operatorClient(t).InfrastructureV1beta1().NstanceMachinePools(installation.Namespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"other","uid":"other"}]}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
}

// operatorClient returns a client with the account of the operator.
func operatorClient(t testing.TB) versioned.Interface {
	t.Helper()
	config := rest.CopyConfig(env.AdminConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + installation.Namespace + ":nstance-operator"}
	client, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// createNstanceMachine creates an NstanceMachine without an instance until the end of the
// test.
func createNstanceMachine(t *testing.T, name string, owners ...metav1.OwnerReference) deletable {
	t.Helper()
	object := &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: installation.Namespace, OwnerReferences: owners,
			Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "none"}},
	}
	_, err := env.NstanceMachines().Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	created := deletable{v1beta1.MachineKind, name}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := created.delete(ctx, capiManager, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
	})
	return created
}

// createMachineOwner creates a Machine that Cluster API leaves as it is, until the end of the
// test, and returns a reference to it. The garbage collector deletes an object whose owners do not
// exist (https://kubernetes.io/docs/concepts/architecture/garbage-collection/).
func createMachineOwner(t *testing.T, name string) metav1.OwnerReference {
	t.Helper()
	created, err := env.Machines().Create(t.Context(), &clusterv1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: installation.Namespace, Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName:       installation.ClusterName,
			Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: name},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, env.Machines().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
	return metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: created.UID}
}

// controlling returns a reference to an owner that is the controller.
func controlling(owner metav1.OwnerReference) metav1.OwnerReference {
	owner.Controller = ptr.To(true)
	return owner
}
