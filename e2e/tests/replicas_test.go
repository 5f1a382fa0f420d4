// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
)

// Cluster API makes 1 of replicas that are left out; of a MachinePool with 5 that
// would end four instances that nobody asked to end.
func TestReplicasCannotBeLeftOut(t *testing.T) {
	const name = "left-out"
	createPool(t, name, 5)
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 5) })
	w := newWitness(t, name)

	leaveOut := func() error {
		_, err := env.dynamic.Resource(clusterv1.GroupVersion.WithResource("machinepools")).Namespace(nstance.Namespace).
			Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"replicas":null}}`), metav1.PatchOptions{})
		return err
	}
	if err := leaveOut(); !apierrors.IsInvalid(err) {
		t.Errorf("got %v, want the replicas to be required", err)
	}
	// A number that was scaled to has no owner, and is no less protected.
	scale(t, name, 6)
	if err := leaveOut(); !apierrors.IsInvalid(err) {
		t.Errorf("after scaling: got %v, want the replicas to be required", err)
	}
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 6) })
	w.sawNoLoss(t)

	// A number is a number, by scaling or by editing.
	patchMachinePool(t, name, `{"spec":{"replicas":2}}`)
	eventually(t, 2*time.Minute, "the edited number holds", func(ctx context.Context) error { return running(ctx, name, 2) })
	scale(t, name, 1)
	eventually(t, 2*time.Minute, "the scaled number holds", func(ctx context.Context) error { return running(ctx, name, 1) })
}
