// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tier_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/testing/tier"
)

func TestSizes(t *testing.T) {
	t.Setenv(tier.FullVariable, "")
	assert.Equal(t, 60, tier.Pick(60, 500))
	t.Setenv(tier.FullVariable, "1")
	assert.Equal(t, 500, tier.Pick(60, 500))
}

func TestSeedsAreFixedInMakeTestAndRandomInMakeTestFull(t *testing.T) {
	t.Setenv(tier.SeedVariable, "")
	t.Setenv(tier.FullVariable, "")
	assert.Equal(t, []uint64{0, 1, 2}, tier.Seeds(t, 3))
	t.Setenv(tier.FullVariable, "1")
	assert.Len(t, tier.Seeds(t, 3), 3)
	assert.NotEqual(t, tier.Seeds(t, 3), tier.Seeds(t, 3))
}

func TestASeedIsRepeated(t *testing.T) {
	for _, full := range []string{"", "1"} {
		t.Setenv(tier.FullVariable, full)
		t.Setenv(tier.SeedVariable, "18446744073709551615")
		assert.Equal(t, []uint64{1<<64 - 1}, tier.Seeds(t, 3))
	}
}
