// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvsstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/marekvs/storetest"
)

// The nodes together execute the commands of the cluster, also while nodes join and take long to get
// their copies: a node that has not joined executes none. Otherwise the operator would read a load
// that no client has, and add nodes for it.
func TestJoiningNodesExecuteNoCommands(t *testing.T) {
	s := &Store{pods: map[string]*process{}, clusters: map[string]*cluster{}}
	const rate = 22_000
	start := func(address string, ordinal int32) {
		p := &process{cluster: "demo", node: &storetest.Node{Ordinal: ordinal, Factor: storetest.Copies}}
		s.cluster("demo").data.Open(p.node)
		s.pods[address] = p
	}
	executed := func() (sum float64) {
		for _, p := range s.pods {
			sum += p.commands
		}
		return sum
	}
	for ordinal, address := range []string{"a", "b", "c"} {
		start(address, int32(ordinal))
	}
	c := s.cluster("demo")
	c.data.Step(s.runningNodes("demo"))
	c.data.Fill(s.online("demo"))
	now := time.Unix(1e9, 0)
	s.execute("demo", now)
	c.rate = rate

	start("d", 3)
	start("e", 4)
	for second := 1.0; second <= 120; second++ {
		c.data.Step(s.runningNodes("demo"))
		if joining := s.pods["d"].node; second == 5 {
			assert.False(t, joining.Active(), "a node that joins takes longer")
			assert.Zero(t, s.pods["d"].commands)
		}
		now = now.Add(time.Second)
		s.execute("demo", now)
		assert.InDelta(t, second*rate, executed(), 1, "after %.0f s", second)
	}
	assert.Len(t, s.online("demo"), 5)
	assert.Positive(t, s.pods["d"].commands)
}
