// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSignedIdentities(t *testing.T) {
	const audience = "nstance://registration/0a"
	for name, test := range map[string]struct {
		serve func(*cloud, http.ResponseWriter, *http.Request)
		path  string
	}{
		"aws": {serveAWS, "/latest/dynamic/instance-identity/rsa2048"},
		"google": {serveGoogle, "/computeMetadata/v1/instance/service-accounts/default/identity?format=full&audience=" +
			"nstance%3A%2F%2Fregistration%2F0a"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t, test.serve)
			source := NewIdentitySource(name, c.URL)
			_, err := source.SignedIdentity(t.Context(), audience)
			require.ErrorContains(t, err, "404", "a machine without an identity")
			c.set(test.path, "signed")
			signed, err := source.SignedIdentity(t.Context(), audience)
			require.NoError(t, err)
			assert.Equal(t, "signed", string(signed))
			// The service was restarted and has other tokens.
			c.mu.Lock()
			c.token++
			c.mu.Unlock()
			_, err = source.SignedIdentity(t.Context(), audience)
			require.NoError(t, err)
		})
	}
	for _, name := range []string{"azure", "proxmox", ""} {
		assert.Nil(t, NewIdentitySource(name, ""), name)
	}
}
