// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package programversion

import (
	"testing"

	"github.com/prometheus/common/version"
	"github.com/stretchr/testify/assert"
)

// TestVersionIsOneLine without fields that have no value.
func TestVersionIsOneLine(t *testing.T) {
	before, revision := version.Version, version.Revision
	t.Cleanup(func() { version.Version, version.Revision = before, revision })
	version.Version, version.Revision = "v0.1.0", "0123abc"
	assert.Regexp(t, `^nstance-server, version v0\.1\.0 \(revision 0123abc, go1\.\S+, \w+/\w+\)$`, Text("nstance-server"))
	version.Version = ""
	assert.Regexp(t, `^a, version unknown \(revision [^\n]+\)$`, Text("a"))
}
