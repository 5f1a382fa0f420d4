// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzRevokedAgents reads arbitrary revocations of agents, as a writer of the bucket could store.
// Revocations that are read are the same after they were written.
func FuzzRevokedAgents(f *testing.F) {
	f.Add([]byte(`{"instances": {"knd06bgm7733st2576nx5jht4ecjx": {"before": "2026-01-01T00:00:00Z", "serials": ["a"]}}, "later": 1}`))
	f.Add([]byte(`{"instances": {"": {}, "a": null}}`))
	f.Add([]byte(`{"instances": null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var revoked, read RevokedAgents
		if json.Unmarshal(data, &revoked) != nil {
			return
		}
		_ = revoked.CheckNonce(NonceClaims{Subject: "a"})
		written, err := json.Marshal(revoked)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(written, &read), "%s", written)
		again, err := json.Marshal(read)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(again))
	})
}
