// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"
)

// TestMinSize: a static group that the configuration gives instances keeps one, unless the
// configuration says otherwise. A dynamic group keeps none.
func TestMinSize(t *testing.T) {
	c := &Config{
		Templates: map[string]Template{"worker": {Size: 2}, "empty": {}},
		Groups: map[string]map[string]Group{"default": {
			"of-template": {Template: "worker"},
			"of-group":    {Template: "empty", Size: ptr.To[int32](5)},
			"stopped":     {Template: "worker", Size: ptr.To[int32](0)},
			"empty":       {Template: "empty"},
			"three":       {Template: "worker", Size: ptr.To[int32](5), Limits: Limits{MinSize: ptr.To[int32](3)}},
			"to-zero":     {Template: "worker", Limits: Limits{MinSize: ptr.To[int32](0)}},
		}},
	}
	for group, want := range map[string]int32{
		"of-template": 1, "of-group": 1, "stopped": 0, "empty": 0, "three": 3, "to-zero": 0, "dynamic": 0,
	} {
		assert.Equal(t, want, c.MinSize("default", group), group)
	}
	assert.Zero(t, c.MinSize("other", "three"), "a group of another tenant")
}

func TestMaxOnDemand(t *testing.T) {
	assert.Equal(t, 10000, (&Config{}).MaxOnDemand())
	assert.Zero(t, (&Config{Shard: Shard{MaxOnDemand: ptr.To[int32](0)}}).MaxOnDemand())
}
