// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"slices"
	"testing"

	"nstance.dev/operator/e2e/controlplane"
)

func theOperator() *controlplane.Component { return env.cp.Component(env.operator.Component) }

// stopOperator leaves the cluster without an operator until startOperator, or
// until the test is over.
func stopOperator(t *testing.T) {
	t.Helper()
	if err := theOperator().Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, running := theOperator().PID(); !running {
			startOperator(t)
		}
	})
}

func startOperator(t *testing.T) {
	t.Helper()
	if err := theOperator().Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// restartOperator has the operator run with other flags until the test is over.
// Of a flag that is given twice the last counts.
func restartOperator(t *testing.T, flags ...string) {
	t.Helper()
	operator := theOperator()
	before := operator.Argv
	restart := func(ctx context.Context, argv []string) {
		operator.Argv = argv
		if err := operator.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		if err := operator.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { restart(context.WithoutCancel(t.Context()), before) })
	restart(t.Context(), append(slices.Clip(before), flags...))
}
