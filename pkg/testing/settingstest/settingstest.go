// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package settingstest fills the settings of a group, for tests that expect every
// setting to be copied.
package settingstest

import (
	"fmt"

	"sigs.k8s.io/randfill"
)

// Fill sets every exported field of the struct that value points to, and all that is
// in it. No two strings or numbers are equal, so that a setting that is copied to the
// field of another one is found too. functions fill the types that need a value of a
// certain form, as in randfill.
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
