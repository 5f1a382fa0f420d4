// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// The pool that a retained group gets has the settings of the former one: without them the
// shards would replace the instances.
func TestImportHasTheDeclaredSettings(t *testing.T) {
	declared := shard.GroupSettings{Template: "worker", InstanceType: "huge", Subnets: []string{"public"}, Vars: map[string]string{"b": "2"}}
	other := declared
	other.Vars = nil
	with := func(group shard.Group, settings *shard.GroupSettings) *shard.Group {
		group.Declared = settings
		return &group
	}
	for name, test := range map[string]struct {
		a, b *shard.Group
		want v1beta1.GroupSettings
	}{
		"the same on all shards": {with(dynamic("worker"), &declared), with(dynamic("worker"), &declared),
			v1beta1.GroupSettings{Template: "worker", InstanceType: "huge", Subnets: []v1beta1.Identifier{"public"}, Vars: map[string]string{"b": "2"}}},
		"different ones":          {with(dynamic("worker"), &declared), with(dynamic("worker"), &other), v1beta1.GroupSettings{Template: "worker"}},
		"none":                    {with(dynamic("worker"), &shard.GroupSettings{}), with(dynamic("worker"), &shard.GroupSettings{}), v1beta1.GroupSettings{Template: "worker"}},
		"one server reports none": {with(dynamic("worker"), &declared), with(dynamic("worker"), nil), v1beta1.GroupSettings{Template: "worker"}},
		"a static group": {with(static(1), &declared), with(static(1), &declared),
			v1beta1.GroupSettings{InstanceType: "huge", Vars: map[string]string{"b": "2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan(observation{group: "main", shards: []shardState{{id: "a", known: true, group: test.a}, {id: "b", known: true, group: test.b}}})
			assert.Equal(t, test.want, d.create.GroupSettings)
		})
	}
}
