// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster API defaults missing replicas to 1; a MachinePool with 5 would lose four
// instances without a request by the user.
func TestReplicasAreRequired(t *testing.T) {
	t.Parallel()
	const name = "left-out"
	env.CreatePoolForTest(t, name, 5)
	env.UntilRunning(t, name, 5)
	losses := env.NewLossChecker(t, name)
	losses.BesideOthers = true

	removeReplicas := func() error {
		_, err := env.ClusterAPI("machinepools").
			Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"replicas":null}}`), metav1.PatchOptions{})
		return err
	}
	if err := removeReplicas(); !apierrors.IsInvalid(err) {
		t.Errorf("got %v, want the replicas to be required", err)
	}
	// Replicas that were set by scaling have no field manager, and are protected as well.
	env.Scale(t, name, 6)
	if err := removeReplicas(); !apierrors.IsInvalid(err) {
		t.Errorf("after scaling: got %v, want the replicas to be required", err)
	}
	env.UntilRunning(t, name, 6)
	losses.ExpectNone(t)

	// Replicas can be changed by scaling and by editing.
	env.PatchMachinePool(t, name, `{"spec":{"replicas":2}}`)
	env.UntilRunning(t, name, 2)
	env.Scale(t, name, 1)
	env.UntilRunning(t, name, 1)
}
