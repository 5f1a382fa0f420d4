// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestReplicasMustNotBeRemoved(t *testing.T) {
	const rejection = "spec.replicas: Required value: without a number Cluster API makes 1 of the present 5"
	made := func(replicas *int32, owned bool) *clusterv1.MachinePool {
		machinePool := newMachinePool("workers", v1beta1.PoolKind, "workers")
		machinePool.Spec.Replicas = replicas
		if owned {
			machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
		}
		return machinePool
	}
	for name, test := range map[string]struct {
		after  *clusterv1.MachinePool
		change func(*clusterv1.MachinePool)
		want   string
	}{
		"a number that Cluster API fills in": {after: made(ptr.To[int32](1), false), want: rejection},
		"a number of the sender":             {after: made(ptr.To[int32](1), true)},
		"a default that deletes no instance": {after: made(ptr.To[int32](5), false)},
		"another infrastructure": {after: made(ptr.To[int32](1), false), change: func(m *clusterv1.MachinePool) {
			m.Spec.Template.Spec.InfrastructureRef.Kind = "DockerMachinePool"
		}},
		"it is handed over to the autoscaler": {after: made(ptr.To[int32](4), false), change: func(m *clusterv1.MachinePool) {
			m.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "1", clusterv1.AutoscalerMaxSizeAnnotation: "4"}
		}},
		"only half of it is handed over": {after: made(ptr.To[int32](1), false), change: func(m *clusterv1.MachinePool) {
			m.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "1"}
		}, want: rejection},
	} {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(test.after)
			}
			err := newValidator(t, present()).Validate(newRequest(t, admissionv1.Update, machinePools, made(ptr.To[int32](5), true), test.after))
			if test.want == "" && err != nil {
				t.Errorf("rejected: %v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
