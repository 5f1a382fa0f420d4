// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"io"
	"net/http"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

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
