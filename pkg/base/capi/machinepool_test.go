// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestReplicasOwned(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	for name, test := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		"no managed fields": {nil, false},
		"set by a webhook": {[]metav1.ManagedFieldsEntry{
			entry("kubectl-create", `{"f:spec":{".":{},"f:clusterName":{},"f:template":{"f:spec":{"f:clusterName":{}}}}}`),
		}, false},
		"set by a user": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:metadata":{"f:finalizers":{}}}`), entry("kubectl-create", `{"f:spec":{"f:clusterName":{},"f:replicas":{}}}`),
		}, true},
		"status.replicas": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:status":{"f:replicas":{}}}`),
		}, false},
		"replicas of the template": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:spec":{"f:template":{"f:replicas":{}}}}`),
		}, false},
		"label of that name": {[]metav1.ManagedFieldsEntry{
			entry("manager", `{"f:metadata":{"f:labels":{"f:replicas":{}}},"f:spec":{"f:clusterName":{}}}`),
		}, false},
		"invalid managed fields": {[]metav1.ManagedFieldsEntry{entry("x", `{`), entry("x", `{"f:replicas"`), {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			object := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.entries}}
			if got := ReplicasOwned(object); got != test.want {
				t.Errorf("owned is %t, want %t", got, test.want)
			}
			kept := trimmed(t, object)
			if got := ReplicasOwned(kept); got != test.want {
				t.Errorf("after the transform owned is %t, want %t", got, test.want)
			}
			if (len(kept.ManagedFields) == 0) != (len(test.entries) == 0) {
				t.Errorf("the transform turned %d entries into %d", len(test.entries), len(kept.ManagedFields))
			}
		})
	}
}

func trimmed(t *testing.T, machinePool *clusterv1.MachinePool) *clusterv1.MachinePool {
	t.Helper()
	kept, err := TrimMachinePool(machinePool)
	require.NoError(t, err)
	return kept.(*clusterv1.MachinePool)
}

// A transform may run more than once on an object, and receives tombstones.
func TestTrimMachinePool(t *testing.T) {
	deleted := metav1.Unix(2, 0)
	metadata := metav1.ObjectMeta{
		Namespace: "ns", Name: "workers", UID: "uid", ResourceVersion: "7", Generation: 3,
		CreationTimestamp: metav1.Unix(1, 0), DeletionTimestamp: &deleted,
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		Finalizers: []string{"x"}, OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster"}},
	}
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "NstanceMachinePool", Name: "workers"}
	template := clusterv1.ObjectMeta{Labels: map[string]string{"os": "linux"}, Annotations: map[string]string{"c": "d"}}
	machinePool := &clusterv1.MachinePool{
		TypeMeta:   metav1.TypeMeta{Kind: "MachinePool"},
		ObjectMeta: metadata,
		Spec: clusterv1.MachinePoolSpec{ClusterName: "one", Replicas: ptr.To[int32](3), ProviderIDList: []string{"kwok://i-1"},
			Template: clusterv1.MachineTemplateSpec{ObjectMeta: template, Spec: clusterv1.MachineSpec{
				ClusterName: "one", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")}, InfrastructureRef: ref,
			}}},
		Status: clusterv1.MachinePoolStatus{Phase: "Running", Conditions: []metav1.Condition{{Type: "Ready"}}},
	}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
	want := &clusterv1.MachinePool{
		ObjectMeta: metadata,
		Spec: clusterv1.MachinePoolSpec{ClusterName: "one", Replicas: ptr.To[int32](3),
			Template: clusterv1.MachineTemplateSpec{ObjectMeta: clusterv1.ObjectMeta{Labels: template.Labels}, Spec: clusterv1.MachineSpec{
				Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")}, InfrastructureRef: ref,
			}}},
	}
	want.ManagedFields = replicasOwned
	for range 2 {
		machinePool = trimmed(t, machinePool)
		if diff := cmp.Diff(want, machinePool); diff != "" {
			t.Fatalf("the cached MachinePool (-want +got):\n%s", diff)
		}
		if &machinePool.ManagedFields[0] != &replicasOwned[0] {
			t.Error("the managed fields take memory of their own")
		}
	}
	for _, other := range []any{cache.DeletedFinalStateUnknown{Key: "one"}, "another type"} {
		if kept, err := TrimMachinePool(other); err != nil || kept != other {
			t.Errorf("the transform turned %v into %v, error %v", other, kept, err)
		}
	}
}

// Cluster API changes MachinePools often, and each change is transformed and compared.
func TestReplicasOwnedAllocatesLittle(t *testing.T) {
	machinePool := &clusterv1.MachinePool{}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{
		{FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:finalizers":{},"f:labels":{"f:a":{}}},"f:spec":{"f:template":{}}}`)},
		{FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{},"f:phase":{}}}`)},
	}
	if count := testing.AllocsPerRun(100, func() { ReplicasOwned(machinePool) }); count > 0 {
		t.Errorf("%v allocations without an entry for replicas", count)
	}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
	machinePool = trimmed(t, machinePool)
	if count := testing.AllocsPerRun(100, func() { ReplicasOwned(machinePool) }); count > 0 {
		t.Errorf("%v allocations for a cached MachinePool", count)
	}
}

func TestScaleMachinePool(t *testing.T) {
	machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workers", ResourceVersion: "7"}}
	conflict := apierrors.NewConflict(clusterv1.GroupVersion.WithResource("machinepools").GroupResource(), "workers", nil).Status()
	conflict.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	for name, test := range map[string]struct {
		code   int
		answer any
		check  func(error) bool
	}{
		"done": {http.StatusOK, &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"}},
			func(err error) bool { return err == nil }},
		"conflict": {http.StatusConflict, &conflict, apierrors.IsConflict},
	} {
		t.Run(name, func(t *testing.T) {
			var got, body string
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				sent, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got, body = r.Method+" "+r.URL.String()+" "+r.Header.Get("Content-Type"), string(sent)
				answer(t, w, test.code, test.answer)
			})
			err := client.ScaleMachinePool(t.Context(), machinePool, 5, metav1.PatchOptions{FieldManager: "tester"})
			if !test.check(err) {
				t.Errorf("got error %v", err)
			}
			if want := "PATCH " + machinePoolsPath + "/workers/scale?fieldManager=tester application/merge-patch+json"; got != want {
				t.Errorf("sent %s, want %s", got, want)
			}
			if want := `{"metadata":{"resourceVersion":"7"},"spec":{"replicas":5}}`; body != want {
				t.Errorf("sent %s, want %s", body, want)
			}
		})
	}
}

func TestApplyMachinePoolAnnotations(t *testing.T) {
	replicas := int32(3)
	machinePool := &clusterv1.MachinePool{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workers", UID: "uid-1", ResourceVersion: "7",
			Labels: map[string]string{"team": "shop"}, Annotations: map[string]string{"theirs": "1"}},
		Spec: clusterv1.MachinePoolSpec{ClusterName: "dev--default", Replicas: &replicas},
	}
	conflict := apierrors.NewApplyConflict([]metav1.StatusCause{{
		Type: metav1.CauseTypeFieldManagerConflict, Field: ".metadata.annotations.ours", Message: `conflict with "kubectl"`,
	}}, "another manager owns it").Status()
	conflict.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	done := machinePool.DeepCopy()
	done.Annotations["ours"] = "a=b"
	for name, test := range map[string]struct {
		annotations map[string]string
		code        int
		answer      any
		sent        string
		check       func(*clusterv1.MachinePool, error) bool
	}{
		"done": {map[string]string{"ours": "a=b"}, http.StatusOK, done, `,"annotations":{"ours":"a=b"}`,
			func(got *clusterv1.MachinePool, err error) bool {
				return err == nil && maps.Equal(got.Annotations, done.Annotations)
			}},
		"no annotations": {map[string]string{}, http.StatusOK, machinePool, "",
			func(_ *clusterv1.MachinePool, err error) bool { return err == nil }},
		"another manager owns it": {map[string]string{"ours": "a=b"}, http.StatusConflict, &conflict, `,"annotations":{"ours":"a=b"}`,
			func(_ *clusterv1.MachinePool, err error) bool {
				cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldManagerConflict)
				return apierrors.IsConflict(err) && ok && cause.Field == ".metadata.annotations.ours"
			}},
	} {
		t.Run(name, func(t *testing.T) {
			var got, body string
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				sent, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got, body = r.Method+" "+r.URL.String()+" "+r.Header.Get("Content-Type"), string(sent)
				answer(t, w, test.code, test.answer)
			})
			after, err := client.ApplyMachinePoolAnnotations(t.Context(), machinePool, test.annotations, metav1.ApplyOptions{FieldManager: "tester"})
			if !test.check(after, err) {
				t.Errorf("got %+v, error %v", after, err)
			}
			if want := "PATCH " + machinePoolsPath + "/workers?fieldManager=tester&force=false application/apply-patch+yaml"; got != want {
				t.Errorf("sent %s, want %s", got, want)
			}
			// The field manager owns every field that is sent.
			want := `{"kind":"MachinePool","apiVersion":"cluster.x-k8s.io/v1beta2","metadata":{"name":"workers","namespace":"default","uid":"uid-1"` +
				test.sent + `}}`
			if body != want {
				t.Errorf("sent %s, want %s", body, want)
			}
		})
	}
}

// The wanted values are results of Cluster API's function MustFormatValue in v1.14.2.
func TestLabelValue(t *testing.T) {
	for name, want := range map[string]string{
		"":                                   "",
		"a":                                  "a",
		"workers":                            "workers",
		"workers.gpu":                        "workers.gpu",
		"9-lives":                            "9-lives",
		"Upper_case":                         "Upper_case",
		strings.Repeat("a", 63):              strings.Repeat("a", 63),
		strings.Repeat("a", 64):              "hash_2W8PhQ_z",
		strings.Repeat("workers.", 31) + "x": "hash_bCXvkg_z",
		"pool-7-":                            "hash_Ayrq_g_z",
		"pool-24-":                           "hash_q9b-Gw_z",
		"-workers":                           "hash_q37NHw_z",
		"workers-":                           "hash_UyOCEw_z",
		"workers/gpu":                        "hash_ygdTEQ_z",
		"größe":                              "hash_zTj0mg_z",
	} {
		if got := LabelValue(name); got != want {
			t.Errorf("value of %q is %q, want %q", name, got, want)
		}
	}
}
