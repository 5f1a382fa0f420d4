// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// restartOperator runs the operator with more flags until the end of the test. The
// last value of a flag counts.
func restartOperator(t *testing.T, flags ...string) {
	t.Helper()
	operator := env.OperatorProcess()
	before := operator.Argv
	restart := func(ctx context.Context, argv []string) {
		operator.Argv = argv
		require.NoError(t, operator.Stop(ctx))
		require.NoError(t, operator.Start(ctx))
	}
	t.Cleanup(func() { restart(context.WithoutCancel(t.Context()), before) })
	restart(t.Context(), append(slices.Clip(before), flags...))
}
