// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"io"
	"maps"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

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
