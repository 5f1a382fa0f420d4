// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package inputs

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOnlyListedInputsMayBeUsed(t *testing.T) {
	before := linked
	t.Cleanup(func() { linked = before })

	linked = Format(map[string]string{"server": "12", Manifests: "34"})
	assert.Equal(t, "manifests:34,server:12", linked)
	built, err := Built("server")
	assert.True(t, built)
	assert.NoError(t, err)
	assert.NoError(t, Check(Manifests))
	_, err = Built("serve")
	assert.ErrorContains(t, err, "use serve: add it to the inputs of the package")
	assert.Error(t, Check(Docs))

	linked = ""
	built, err = Built("serve")
	assert.False(t, built)
	assert.NoError(t, err)
	assert.NoError(t, Check(Docs))
}
