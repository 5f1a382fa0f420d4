// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

// TestPlanOfAHugeSize: a plan has no more actions than a reconciliation carries out.
func TestPlanOfAHugeSize(t *testing.T) {
	actions, _ := plan(group(1<<31-1), planTime)
	assert.Len(t, actions, maxCreations+1)
}

// TestPlanOfGrowthWhileOthersDrain scales a group from 10 to 2 and back.
func TestPlanOfGrowthWhileOthersDrain(t *testing.T) {
	var instances []instance.Instance
	for n := range 10 {
		i := newInstance(fmt.Sprint("i", n), 10-n, instance.Running)
		if n < 8 {
			draining("scale-down", 3)(&i)
		}
		instances = append(instances, i)
	}
	actions, _ := plan(group(10, instances...), planTime)
	assert.Len(t, actions, 8)
	for _, a := range actions {
		assert.Equal(t, "create for scale-up", a.String())
	}
}

// TestPlanOfManyImpaired replaces a tenth of a group at a time.
func TestPlanOfManyImpaired(t *testing.T) {
	var instances []instance.Instance
	for n := range 40 {
		instances = append(instances, newInstance(fmt.Sprint("i", n), 40-n, instance.Impaired))
	}
	actions, _ := plan(group(40, instances...), planTime)
	assert.Len(t, actions, 4)
}
