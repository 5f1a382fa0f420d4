// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package settingstest fills the settings of a group, for tests that expect every
// setting to be copied.
package settingstest

import (
	"fmt"

	"sigs.k8s.io/randfill"
)

// Fill sets every exported field of the struct that value points to, recursively. All
// strings and numbers differ, so that tests detect a setting that is copied to a wrong
// field. functions fill types that need a special form
// (https://pkg.go.dev/sigs.k8s.io/randfill).
func Fill(value any, functions ...any) {
	n := 0
	next := func() int { n++; return n }
	randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1).Funcs(
		func(s *string, _ randfill.Continue) { *s = fmt.Sprintf("x%d", next()) },
		func(i *int32, _ randfill.Continue) { *i = int32(next()) },
		func(i *int64, _ randfill.Continue) { *i = int64(next()) },
		func(b *bool, _ randfill.Continue) { *b = true },
	).Funcs(functions...).Fill(value)
}
