// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The import of a group of one shard writes three objects and the status of two of
// them, each once, and records one event. The pool may have a status before its shard group.
func TestWritesOfAnImport(t *testing.T) {
	const name = "frugal"
	from := env.AuditEnd(t)
	upsertDirectly(t, "us-west-2b", name, 0)
	testcluster.Eventually(t, time.Minute, "the pool is ready", func(ctx context.Context) error {
		return conditionIs(ctx, name, v1beta1.ConditionReady, metav1.ConditionTrue)
	})
	t.Cleanup(func() {
		err := env.MachinePools().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
		untilNothingIsLeft(t, name)
	})
	testcluster.Eventually(t, time.Minute, "Cluster API runs the MachinePool", func(ctx context.Context) error { return env.Running(ctx, name, 0) })
	writes := env.OperatorWrites(t, from, func(w controlplane.Write) bool { return strings.HasPrefix(w.Name, name) })
	count := map[string]int{}
	for _, w := range writes {
		count[strings.Trim(w.Resource+"/"+w.Subresource, "/")]++
	}
	want := map[string]int{
		"nstancemachinepools": 1, "machinepools": 1, "nstanceshardgroups": 1, "events": 1,
		"nstanceshardgroups/status": 1, "nstancemachinepools/status": 1,
	}
	if count["nstancemachinepools/status"] == 2 {
		want["nstancemachinepools/status"] = 2
	}
	if !maps.Equal(count, want) {
		t.Errorf("%v, want %v:%s", count, want, testcluster.Describe(writes))
	}
}
