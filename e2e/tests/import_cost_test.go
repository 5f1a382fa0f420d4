// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The import of a group of one shard is three objects and the status of two of
// them, and nothing is written twice.
func TestImportOfAGroupIsFiveWrites(t *testing.T) {
	const name = "frugal"
	from := auditEnd(t)
	upsertBehind(t, "us-west-2b", name, 0)
	eventually(t, time.Minute, "the pool is ready", func(ctx context.Context) error {
		return conditionIs(ctx, name, v1beta1.ConditionReady, metav1.ConditionTrue)
	})
	t.Cleanup(func() {
		err := env.capi.MachinePools(nstance.Namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
		untilNothingIsLeft(t, name)
	})
	eventually(t, time.Minute, "Cluster API runs the MachinePool", func(ctx context.Context) error { return running(ctx, name, 0) })
	writes := operatorWrites(t, from, func(w controlplane.Write) bool { return strings.HasPrefix(w.Name, name) })
	if len(writes) != 5 {
		t.Errorf("%d writes, want 5:%s", len(writes), describe(writes))
	}
}
