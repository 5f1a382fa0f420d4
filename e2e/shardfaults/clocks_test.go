// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// The same with clocks that are wrong.
func TestWrongClocks(t *testing.T) {
	if !tier.Full() {
		t.Skip("operator and servers have the clock of the machine: make test-full builds them with one that tests set")
	}
	env.ExpectNoLosses(t, timeless, clockFaults(), nil)
}

// timeless is the pool that must not lose instances while clocks are wrong.
const timeless = "timeless"

func clockFaults() []testcluster.Fault {
	server := func() *controlplane.Component { return env.ShardServer(shardIDs[0]) }
	run := func(t *testing.T, scaleUp testcluster.ScaleUp) { scaleUp.UntilShardsRun(t) }
	// A certificate that is not valid yet is not accepted.
	unreachable := func(t *testing.T, _ testcluster.ScaleUp) {
		untilShardsReachable(t, timeless, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable)
	}
	return []testcluster.Fault{
		{Name: "the clock of a server is an hour ahead", Happen: wrongClock(time.Hour, server, unreachable)},
		{Name: "the clock of a server is an hour behind", Happen: wrongClock(-time.Hour, server, unreachable)},
		{Name: "the clock of the operator is an hour ahead", Happen: wrongClock(time.Hour, env.OperatorProcess, run)},
		{Name: "the clock of the operator is an hour behind", Happen: wrongClock(-time.Hour, env.OperatorProcess, unreachable)},
	}
}

// wrongClock restarts a component with another clock until it has had its effect, and then
// with the right one.
func wrongClock(ahead time.Duration, find func() *controlplane.Component, effect func(*testing.T, testcluster.ScaleUp)) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		component := find()
		before := component.Env
		defer restartWith(t, component, before)
		restartWith(t, component, slices.Concat(before, controlplane.Clock(ahead)))
		scaleUp.Begin(t)
		effect(t, scaleUp)
	}
}

func restartWith(t *testing.T, component *controlplane.Component, environment []string) {
	t.Helper()
	require.NoError(t, component.Stop(t.Context()))
	component.Env = environment
	testcluster.Start(t, component)
}
