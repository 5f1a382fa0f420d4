// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/provider"
)

func TestValidateID(t *testing.T) {
	longest := strings.Repeat("x", identifier.MaxLength)
	for _, id := range []string{"prod", "a-b", longest} {
		assert.NoError(t, provider.ValidateID(id), "%s", id)
		assert.NoError(t, provider.ValidateID(provider.CheckPrefix+id), "%s", id)
		assert.Error(t, identifier.Validate(provider.CheckPrefix+id), "a server or an operator with %s", provider.CheckPrefix+id)
	}
	for _, id := range []string{"", "check--", "check---prod", "check--check--prod", "check--a--b", "checks--prod", "a--check--b", "check--A", "check--" + longest + "x"} {
		assert.Error(t, provider.ValidateID(id), "%s", id)
	}
}
