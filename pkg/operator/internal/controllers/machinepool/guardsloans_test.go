// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/distribute"
	"nstance.dev/operator/pkg/operator/shard"
)

// A pool with loans is scaled down in steps too, from the borrower. What is lent is not
// returned meanwhile: the lender may still be without stock.
func TestGuardedScaleDownOfAPoolWithLoans(t *testing.T) {
	const replicas = 3
	seen := guardedPool(upTo("1"), replicas)
	seen.pool.Spec.OnShortfall, seen.mayMove = v1beta1.ShortfallMove, true
	for i, state := range []struct{ size, lent int32 }{{1, 2}, {5, -2}} {
		shardState := &seen.shards[i]
		shardState.group.Spec.Size = state.size
		shardState.group.Annotations = map[string]string{v1beta1.AnnotationLent: lentNote{state.lent, 6}.format(seen.pool)}
		serve(shardState)
	}

	var steps [][]int32
	for range 4 {
		d := planOf(seen)
		require.Nil(t, d.blocked)
		steps = append(steps, d.sizes)
		if distribute.Total(d.sizes) > replicas {
			require.NotNil(t, d.scalingDown, "sizes %v", d.sizes)
		}
		for _, want := range d.apply {
			for i := range seen.shards {
				if shardState := &seen.shards[i]; shardState.id == string(want.spec.Shard) {
					shardState.group.Spec = want.spec
					shardState.group.Annotations = map[string]string{v1beta1.AnnotationLent: want.lent}
					serve(shardState)
				}
			}
		}
	}
	assert.Equal(t, [][]int32{{1, 4}, {1, 3}, {1, 2}, {1, 2}}, steps)
}

// serve lets the server of a shard run as many instances as the shard group wants.
func serve(state *shardState) {
	state.reported = listed()
	state.reported.Size = state.group.Spec.Size
	for n := range state.group.Spec.Size {
		id := fmt.Sprintf("%s%d", state.id, n)
		state.reported.Instances = append(state.reported.Instances,
			shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "provider-" + id})
	}
	state.reported.ActualSize = state.group.Spec.Size
}
