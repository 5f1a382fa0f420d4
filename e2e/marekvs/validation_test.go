// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// object is a MarekvsCluster as a user writes it. The typed client could not send the values
// that the API server must reject.
type object = map[string]any

// untyped returns a client of MarekvsClusters that sends objects as they are.
func untyped(t *testing.T) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(env.config)
	require.NoError(t, err)
	return client.Resource(v1alpha1.SchemeGroupVersion.WithResource("marekvsclusters")).Namespace(namespace)
}

// tryCreate returns the object that the API server would store.
func tryCreate(t *testing.T, cluster object) (object, error) {
	t.Helper()
	stored, err := untyped(t).Create(t.Context(), &unstructured.Unstructured{Object: cluster}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, err
	}
	return stored.Object, nil
}

// tryChange changes a field of a stored cluster in a dry run, as with does.
func tryChange(t *testing.T, name, path string, value any) error {
	t.Helper()
	names := strings.Split(path, ".")
	change := value
	for i := len(names) - 1; i >= 0; i-- {
		change = object{names[i]: change}
	}
	body, err := json.Marshal(change)
	require.NoError(t, err)
	_, err = untyped(t).Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// store stores a cluster, which is deleted at the end of the test.
func store(t *testing.T, name string, cluster object) {
	t.Helper()
	clusters := untyped(t)
	_, err := clusters.Create(t.Context(), &unstructured.Unstructured{Object: with(cluster, "metadata.name", name)}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = clusters.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) })
}

// sample is the example of the manifests, with a name that no other test uses.
func sample(t *testing.T) object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "marekvs", "samples", "demo.yaml"))
	require.NoError(t, err)
	encoded, err := yaml.YAMLToJSON(text)
	require.NoError(t, err)
	read := &unstructured.Unstructured{}
	require.NoError(t, read.UnmarshalJSON(encoded))
	return with(read.Object, "metadata.name", "sample")
}

// with sets a field of an object, whose path is separated by dots. A nil value removes it.
func with(to object, path string, value any) object {
	names := strings.Split(path, ".")
	at := to
	for _, name := range names[:len(names)-1] {
		next, ok := at[name].(object)
		if !ok {
			next = object{}
			at[name] = next
		}
		at = next
	}
	if last := names[len(names)-1]; value == nil {
		delete(at, last)
	} else {
		at[last] = value
	}
	return to
}

// expectRejected expects an error that names the field and the rule.
func expectRejected(t *testing.T, err error, field, rule string) {
	t.Helper()
	if assert.True(t, apierrors.IsInvalid(err), "got error %v, want the object to be invalid", err) {
		assert.ErrorContains(t, err, field)
		assert.ErrorContains(t, err, rule)
	}
}

func TestTheSampleIsAdmitted(t *testing.T) {
	t.Parallel()
	stored, err := tryCreate(t, sample(t))
	require.NoError(t, err)
	assert.Equal(t, with(sample(t), "spec.nodes", int64(v1alpha1.DefaultNodes))["spec"], stored["spec"])
}

// Only the defaults that must not change for an existing cluster are stored.
func TestStoredDefaults(t *testing.T) {
	t.Parallel()
	autoscale := object{"minNodes": int64(1), "maxNodes": int64(5), "targetOpsPerNode": int64(1)}
	stored, err := tryCreate(t, object{
		"apiVersion": "marekvs.io/v1alpha1", "kind": "MarekvsCluster", "metadata": object{"name": "defaulted"},
		"spec": object{"image": "i", "autoscale": autoscale},
	})
	require.NoError(t, err)
	assert.Equal(t, object{
		"image": "i", "nodes": int64(v1alpha1.DefaultNodes), "replicationFactor": int64(v1alpha1.DefaultReplicationFactor),
		"storage": object{"size": v1alpha1.DefaultStorageSize}, "autoscale": autoscale,
	}, stored["spec"])
}

// Invalid clusters are rejected with a message that names the field and the rule.
func TestInvalidClustersAreRejected(t *testing.T) {
	t.Parallel()
	const (
		noQuantity, notPositive = "should match", "must be more than 0"
		reserved                = "are determined by the operator"
		unreliable              = "would not be those that the operator relies on"
		badName                 = "the name of a variable must consist of"
	)
	for _, c := range []struct {
		path        string
		value       any
		field, rule string
	}{
		{"metadata.name", strings.Repeat("x", 53), "", "metadata.name must have at most 52 characters"},
		{"metadata.name", "a.b", "", "metadata.name must begin with a letter"},
		{"metadata.name", "0a", "", "metadata.name must begin with a letter"},
		{"metadata.name", "a-", "metadata.name", "lower case alphanumeric characters"},
		{"spec.image", nil, "spec.image", "Required value"},
		{"spec.image", "", "spec.image", "at least 1 char"},
		{"spec.image", " ", "spec.image", "should match"},
		{"spec.image", "a b", "spec.image", "should match"},
		{"spec.image", strings.Repeat("x", 1025), "spec.image", "may not be more than 1024"},
		{"spec.nodes", int64(0), "spec.nodes", "greater than or equal to 1"},
		{"spec.nodes", int64(1001), "spec.nodes", "less than or equal to 1000"},
		{"spec.replicationFactor", int64(0), "spec.replicationFactor", "greater than or equal to 1"},
		{"spec.replicationFactor", int64(101), "spec.replicationFactor", "less than or equal to 100"},
		{"spec.replicationFactor", int64(8), "spec", "autoscale.maxNodes must be more than replicationFactor"},
		{"spec.storage.size", "banana", "spec.storage.size", noQuantity},
		{"spec.storage.size", "0", "spec.storage.size", notPositive},
		{"spec.storage.size", "-1Gi", "spec.storage.size", notPositive},
		{"spec.storage.size", int64(0), "spec.storage.size", notPositive},
		{"spec.storage.className", "", "spec.storage.className", "at least 1 char"},
		{"spec.storage.className", strings.Repeat("x", 254), "spec.storage.className", "may not be more than 253"},
		{"spec.storage.className", "Not A Key!", "spec.storage.className", "should match"},
		{"spec.resources.cpu", "banana", "spec.resources.cpu", noQuantity},
		{"spec.resources.cpu", "0", "spec.resources.cpu", notPositive},
		{"spec.resources.memory", "banana", "spec.resources.memory", noQuantity},
		{"spec.resources.memory", "-1", "spec.resources.memory", notPositive},
		{"spec.autoscale.minNodes", int64(0), "spec.autoscale.minNodes", "greater than or equal to 1"},
		{"spec.autoscale.minNodes", int64(9), "spec.autoscale", "minNodes must not be more than maxNodes"},
		{"spec.autoscale.minNodes", nil, "spec.autoscale.minNodes", "Required value"},
		{"spec.autoscale.maxNodes", int64(2), "spec.autoscale", "minNodes must not be more than maxNodes"},
		{"spec.autoscale.maxNodes", nil, "spec.autoscale.maxNodes", "Required value"},
		{"spec.autoscale.targetOpsPerNode", int64(0), "spec.autoscale.targetOpsPerNode", "greater than or equal to 1"},
		{"spec.autoscale.targetOpsPerNode", 0.5, "spec.autoscale.targetOpsPerNode", "must be of type integer"},
		{"spec.autoscale.targetOpsPerNode", nil, "spec.autoscale.targetOpsPerNode", "Required value"},
		{"spec.autoscale.targetDiskPercent", int64(0), "spec.autoscale.targetDiskPercent", "greater than or equal to 1"},
		{"spec.autoscale.targetDiskPercent", int64(96), "spec.autoscale.targetDiskPercent", "less than or equal to 95"},
		{"spec.autoscale.scaleDownStabilizationSeconds", int64(-1), "spec.autoscale.scaleDownStabilizationSeconds", "greater than or equal to 0"},
		{"spec.autoscale.scaleDownStabilizationSeconds", int64(86401), "spec.autoscale.scaleDownStabilizationSeconds", "less than or equal to 86400"},
		{"spec.autoscale.scaleUpCooldownSeconds", int64(-1), "spec.autoscale.scaleUpCooldownSeconds", "greater than or equal to 0"},
		{"spec.autoscale.scaleUpCooldownSeconds", int64(86401), "spec.autoscale.scaleUpCooldownSeconds", "less than or equal to 86400"},
		{"spec.spread", object{}, "spec.spread", "at least 1 properties"},
		{"spec.spread.hostname", object{}, "spec.spread.hostname", "at least 1 properties"},
		{"spec.spread.hostname.whenUnsatisfiable", "Maybe", "spec.spread.hostname.whenUnsatisfiable", "Unsupported value"},
		{"spec.tolerations", []any{object{"operator": ""}}, "spec.tolerations[0].operator", "at least 1 char"},
		{"spec.tolerations", []any{object{"operator": "exists"}}, "spec.tolerations[0].operator", "should match"},
		{"spec.tolerations", []any{object{"operator": strings.Repeat("X", 64)}}, "spec.tolerations[0].operator", "may not be more than 63"},
		{"spec.tolerations", []any{object{"effect": "Maybe"}}, "spec.tolerations[0].effect", "Unsupported value"},
		{"spec.tolerations", []any{object{"effect": ""}}, "spec.tolerations[0].effect", "Unsupported value"},
		{"spec.tolerations", []any{object{"key": strings.Repeat("x", 318)}}, "spec.tolerations[0].key", "may not be more than 317"},
		{"spec.tolerations", []any{object{"value": strings.Repeat("x", 64)}}, "spec.tolerations[0].value", "may not be more than 63"},
		{"spec.affinity", object{}, "spec.affinity", "at least 1 properties"},
		{"spec.affinity.nodeAffinity", object{}, "spec.affinity.nodeAffinity", "at least 1 properties"},
		{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", object{"nodeSelectorTerms": []any{}}, "nodeSelectorTerms", "at least 1 items"},
		{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", nodesWith(object{"key": "a", "operator": "In"}), "matchExpressions[0]", "values must have at least one value"},
		{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", nodesWith(object{"key": "a", "operator": "Gt", "values": []any{"1", "2"}}), "matchExpressions[0]", "exactly one with Gt and Lt"},
		{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", nodesWith(object{"key": "a", "operator": "Exists", "values": []any{"1"}}), "matchExpressions[0]", "none with Exists"},
		{"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution", []any{object{}}, "topologyKey", "Required value"},
		{"spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution", []any{object{"weight": int64(101), "podAffinityTerm": object{"topologyKey": "a"}}}, "weight", "less than or equal to 100"},
		{"spec.extraEnv", object{"A B": "x"}, "spec.extraEnv", badName},
		{"spec.extraEnv", object{"A=B": "x"}, "spec.extraEnv", badName},
		{"spec.extraEnv", object{"": "x"}, "spec.extraEnv", badName},
		{"spec.extraEnv", object{"GOOD": "x", "0A": "x"}, "spec.extraEnv", badName},
		{"spec.extraEnv", object{"A": strings.Repeat("x", 32769)}, "spec.extraEnv", "must have at most 32768 characters"},
		{"spec.extraEnv", variables(129), "spec.extraEnv", "at most 128"},
		{"spec.extraEnv.MAREKVS_SEEDS", "x", "spec.extraEnv", reserved},
		{"spec.extraEnv.MAREKVS_ADVERTISE_IP", "x", "spec.extraEnv", reserved},
		{"spec.extraEnv.MAREKVS_REPLICAS_N", "1", "spec.extraEnv", reserved},
		{"spec.extraEnv.MAREKVS_DATA_DIR", "x", "spec.extraEnv", reserved},
		{"spec.extraEnv.MAREKVS_METRICS_ADDR", "x", "spec.extraEnv", reserved},
		{"spec.extraEnv.MAREKVS_CLUSTER", "x", "spec.extraEnv", unreliable},
		{"spec.extraEnv.MAREKVS_NODE_ID", "0", "spec.extraEnv", unreliable},
		{"spec.extraEnv.HOSTNAME", "demo-0", "spec.extraEnv", unreliable},
		{"spec.extraEnv.MAREKVS_RESP_ADDR", "x", "spec.extraEnv", unreliable},
		{"spec.extraEnv.MAREKVS_MESH_ADDR", "x", "spec.extraEnv", unreliable},
		{"spec.extraEnv.MAREKVS_GOSSIP_ADDR", "x", "spec.extraEnv", unreliable},
		{"spec.extraEnv.MAREKVS_AE_PARTITIONS_PER_ROUND", "1", "spec.extraEnv", unreliable},
		{"spec.reclaimAfterSeconds", int64(0), "spec.reclaimAfterSeconds", "greater than or equal to 1"},
		{"spec.reclaimAfterSeconds", int64(31536001), "spec.reclaimAfterSeconds", "less than or equal to 31536000"},
		{"spec.progressDeadlineSeconds", int64(0), "spec.progressDeadlineSeconds", "greater than or equal to 1"},
		{"spec.progressDeadlineSeconds", int64(86401), "spec.progressDeadlineSeconds", "less than or equal to 86400"},
		{"spec.podLabels", object{"app": "x"}, "spec.podLabels", "are determined by the operator"},
		{"spec.podLabels", object{"controller-revision-hash": "x"}, "spec.podLabels", "are determined by the operator"},
		{"spec.priorityClassName", "A", "spec.priorityClassName", "should match"},
		{"spec.imagePullSecrets", []any{object{"name": "a"}, object{"name": "a"}}, "spec.imagePullSecrets[1]", "Duplicate value"},
		{"spec.imagePullSecrets", []any{object{}}, "spec.imagePullSecrets[0].name", "Required value"},
		{"spec.secretEnv", []any{object{"name": "A"}}, "spec.secretEnv[0].secretKeyRef", "Required value"},
		{"spec.secretEnv", []any{object{"name": "0A", "secretKeyRef": object{"name": "a", "key": "b"}}}, "spec.secretEnv[0].name", "should match"},
		{"spec.secretEnv", []any{object{"name": "MAREKVS_NODE_ID", "secretKeyRef": object{"name": "a", "key": "b"}}}, "spec.secretEnv[0].name", "the name is not allowed"},
		{"spec.secretEnv", []any{object{"name": "RUST_LOG", "secretKeyRef": object{"name": "a", "key": "b"}}}, "spec.secretEnv", "in both extraEnv and secretEnv"},
		{"spec.restartedAt", "today", "spec.restartedAt", "date-time"},
		{"spec.envFrom", []any{object{}}, "spec.envFrom[0]", "either secretRef or configMapRef must be set"},
		{"spec.envFrom", []any{object{"secretRef": object{"name": "a"}, "configMapRef": object{"name": "a"}}}, "spec.envFrom[0]", "either secretRef or configMapRef must be set"},
	} {
		t.Run(describe(c.path, c.value), func(t *testing.T) {
			_, err := tryCreate(t, with(sample(t), c.path, c.value))
			expectRejected(t, err, c.field, c.rule)
		})
	}
}

func TestValidClustersAreAdmitted(t *testing.T) {
	t.Parallel()
	for path, values := range map[string][]any{
		"metadata.name":                          {strings.Repeat("x", 52), "a", "a-0"},
		"spec.nodes":                             {int64(1), int64(1000)},
		"spec.storage.size":                      {int64(1), "1e3", "0.5Gi"},
		"spec.storage.className":                 {"local-nvme", "a.b"},
		"spec.resources":                         {nil, object{}},
		"spec.autoscale":                         {nil},
		"spec.autoscale.targetDiskPercent":       {int64(80)},
		"spec.spread.hostname.whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
		"spec.extraEnv.MAREKVS_ANYTHING_ELSE":    {"x", "", strings.Repeat("x", 32768)},
		"spec.extraEnv":                          {object{"a.b-c_0": "x", "-": "x", "_": "x", ".a": "x"}, variables(128)},
		"spec.podLabels":                         {object{"team": "a", "example.com/x": ""}},
		"spec.podAnnotations":                    {object{"example.com/x": "any text"}},
		"spec.imagePullSecrets":                  {[]any{object{"name": "a"}, object{"name": "b"}}},
		"spec.secretEnv":                         {[]any{object{"name": "A", "secretKeyRef": object{"name": "a", "key": "b.c-d_e"}}}},
		"spec.restartedAt":                       {"2030-01-02T03:04:05Z", "2030-01-02T03:04:05+01:00"},
		"spec.envFrom":                           {[]any{object{"secretRef": object{"name": "a"}}, object{"prefix": "P_", "configMapRef": object{"name": "a"}}}},
		"spec.affinity": {
			object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": nodesWith(
				object{"key": "a", "operator": "In", "values": []any{"1", ""}}, object{"key": "a", "operator": "Exists"}, object{"key": "a", "operator": "Lt", "values": []any{"1"}},
			)}},
			object{"podAntiAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": []any{
				object{"topologyKey": "kubernetes.io/hostname", "labelSelector": object{"matchLabels": object{"app": "demo"}}, "namespaceSelector": object{}},
			}}},
		},
		"spec.tolerations": {[]any{
			object{"operator": "Exists"},
			object{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": int64(1)},
			object{"key": "a", "operator": "Gt", "value": "5"}, // of a newer Kubernetes
			object{"key": "a", "operator": "Lt", "value": "5"},
		}},
	} {
		for _, value := range values {
			t.Run(describe(path, value), func(t *testing.T) {
				_, err := tryCreate(t, with(sample(t), path, value))
				require.NoError(t, err)
			})
		}
	}
}

// nodesWith selects Nodes for which all expressions are true.
func nodesWith(expressions ...any) object {
	return object{"nodeSelectorTerms": []any{object{"matchExpressions": expressions}}}
}

// variables returns a number of environment variables.
func variables(count int) object {
	environment := object{}
	for i := range count {
		environment[fmt.Sprintf("VARIABLE_%d", i)] = "x"
	}
	return environment
}

// describe names a field and a value, whose end is left out if it is long.
func describe(path string, value any) string {
	encoded, err := json.Marshal(value)
	if err != nil || len(encoded) > 40 {
		encoded = []byte("long")
	}
	return path + "=" + string(encoded)
}

// The size of a volume may grow. It is compared by value, so that a client may write it in another notation.
// While autoscale is set, a change of nodes is rejected, which kubectl scale makes.
func TestChanges(t *testing.T) {
	t.Parallel()
	const (
		scaled, fixed = "changed", "changed-fixed"

		reduced   = "size cannot be reduced, because volumes do not shrink"
		immutable = "className is immutable"
	)
	store(t, scaled, with(with(with(sample(t), "spec.image", "marekvs:1"), "spec.storage.size", "10240Mi"), "spec.storage.className", "local-nvme"))
	store(t, fixed, with(with(with(sample(t), "spec.image", "marekvs:1"), "spec.storage.size", int64(10<<30)), "spec.autoscale", nil))
	for _, name := range []string{scaled, fixed} { // a cluster whose nodes never ran may have any size
		until(t, name, "3 nodes", healthy(3))
	}
	for _, c := range []struct {
		cluster, path string
		value         any
		field, rule   string
	}{
		{scaled, "spec.storage.size", "5Gi", "spec.storage.size", reduced},
		{scaled, "spec.storage.size", "10G", "spec.storage.size", reduced},
		{fixed, "spec.storage.size", "5Gi", "spec.storage.size", reduced},
		{scaled, "spec.storage.className", "other", "spec.storage.className", immutable},
		{scaled, "spec.storage.className", nil, "spec.storage.className", immutable},
		{fixed, "spec.storage.className", "other", "spec.storage.className", immutable},
		{scaled, "spec.nodes", int64(5), "spec.nodes", "nodes cannot be changed while autoscale is set"},
	} {
		t.Run(c.cluster+" "+describe(c.path, c.value), func(t *testing.T) {
			expectRejected(t, tryChange(t, c.cluster, c.path, c.value), c.field, c.rule)
		})
	}
	for _, c := range []struct {
		cluster, path string
		value         any
	}{
		{scaled, "spec.storage.size", "10Gi"},
		{scaled, "spec.storage.size", int64(10 << 30)},
		{scaled, "spec.storage.size", nil}, // the default
		{fixed, "spec.storage.size", "10Gi"},
		{fixed, "spec.storage.size", "10240Mi"},
		{scaled, "spec.storage.size", "20Gi"},
		{scaled, "spec.storage.size", "10241Mi"},
		{scaled, "spec.storage.size", int64(10<<30 + 1)},
		{fixed, "spec.storage.size", "20Gi"},
		{scaled, "spec.image", "other"},
		{scaled, "spec", object{"autoscale": nil, "nodes": int64(5)}},
		{fixed, "spec.nodes", int64(5)},
	} {
		t.Run(c.cluster+" "+describe(c.path, c.value), func(t *testing.T) {
			require.NoError(t, tryChange(t, c.cluster, c.path, c.value))
		})
	}
	for _, name := range []string{scaled, fixed} {
		t.Run(name+" is written back by a typed client", func(t *testing.T) {
			before, after := writeBack(t, name)
			assert.True(t, equality.Semantic.DeepEqual(before.Spec, after.Spec), "%+v became %+v", before.Spec, after.Spec)
		})
	}
}

// A typed client reads a cluster with every field and writes it back unchanged.
func TestTypedClientWritesAClusterBack(t *testing.T) {
	t.Parallel()
	const name = "written-back"
	cluster := sample(t)
	for path, value := range map[string]any{
		"spec.image":                             "marekvs:1",
		"spec.reclaimPvcs":                       true,
		"spec.storage.className":                 "local-nvme",
		"spec.autoscale.targetDiskPercent":       int64(80),
		"spec.spread.hostname.whenUnsatisfiable": "DoNotSchedule",
		"spec.nodeSelector":                      object{"disk": "nvme"},
		"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": nodesWith(object{"key": "a", "operator": "In", "values": []any{"1"}}),
		"spec.tolerations": []any{object{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": int64(1)}},
	} {
		with(cluster, path, value)
	}
	store(t, name, cluster)
	before, after := writeBack(t, name)
	assert.Equal(t, before, after)
	stored, err := untyped(t).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, with(cluster, "spec.nodes", int64(v1alpha1.DefaultNodes))["spec"], stored.Object["spec"])
	assert.Equal(t, int64(1), stored.GetGeneration())
}

// writeBack updates a cluster as it was read.
func writeBack(t *testing.T, name string) (before, after *v1alpha1.MarekvsCluster) {
	t.Helper()
	clusters := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var err error
		if before, err = clusters.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		after, err = clusters.Update(t.Context(), before.DeepCopy(), metav1.UpdateOptions{})
		return err
	})
	require.NoError(t, err)
	return before, after
}
