// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package renewal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCertificateIsDueWhenTwoThirdsAreOver(t *testing.T) {
	issued := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	expires := issued.Add(30 * time.Hour)
	assert.Equal(t, 20*time.Hour, due(issued, expires, 0).Sub(issued).Round(time.Second))
	assert.Equal(t, 19*time.Hour, due(issued, expires, 1).Sub(issued).Round(time.Second))
	// The clock was set back after it was issued, or the certificate was copied.
	assert.False(t, due(expires.Add(time.Hour), expires, 0.5).After(expires.Add(time.Hour)))
}
