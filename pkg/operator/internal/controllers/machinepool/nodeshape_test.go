// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// The cluster autoscaler sees what the operator sets on Nodes for good, and not a taint that is set once.
func TestShapesHaveTheSettingsOfNodes(t *testing.T) {
	reported := &shard.NodeShape{
		Labels: shard.Labels{{Key: "arch", Value: "arm64"}, {Key: "team", Value: "old"}},
		Taints: []shard.Taint{{Key: "dedicated", Value: "old", Effect: "NoSchedule"}, {Key: "dedicated", Value: "old", Effect: "NoExecute"}},
	}
	before := *reported
	settings := &v1beta1.NodeSettings{
		Labels: map[string]string{"team": "search", "a": "1"},
		Taints: []v1beta1.NodeTaint{
			{Key: "dedicated", Value: "search", Effect: "NoSchedule", Propagation: v1beta1.TaintAlways},
			{Key: "starting", Effect: "NoSchedule", Propagation: v1beta1.TaintOnInitialization},
		},
	}
	combined := withNodeSettings(reported, settings)
	assert.Equal(t, shard.Labels{{Key: "a", Value: "1"}, {Key: "arch", Value: "arm64"}, {Key: "team", Value: "search"}}, combined.Labels)
	assert.Equal(t, []shard.Taint{{Key: "dedicated", Value: "old", Effect: "NoExecute"}, {Key: "dedicated", Value: "search", Effect: "NoSchedule"}}, combined.Taints)
	assert.Equal(t, before, *reported, "the report is shared")
	assert.Equal(t, reported, withNodeSettings(reported, nil))
	assert.Nil(t, withNodeSettings(nil, settings))
}
