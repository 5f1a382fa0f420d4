// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzRecord reads arbitrary registrations of operators, as a writer of the bucket could store. A
// registration that is read is the same after it was written.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"tenant": "default", "later": 1}`))
	f.Add([]byte(`{"format_version": 2}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var record, read Record
		if json.Unmarshal(data, &record) != nil {
			return
		}
		written, err := json.Marshal(record)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(written, &read), "%s", written)
		again, err := json.Marshal(read)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(again))
	})
}
