// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzUnmarshalRecord reads arbitrary records, as a writer of the bucket could store. A record that
// is read is the same after it was written, with the fields of later versions.
func FuzzUnmarshalRecord(f *testing.F) {
	f.Add([]byte(`{"id": "a", "tenant": "default", "group": "workers", "created_at": "2026-01-02T03:04:05Z", "registration": {"hostname": "h"}}`))
	f.Add([]byte(`{"format_version": 1, "later": {"a": [1, null]}, "Id": "b", "vars": {"a": "\ud800"}}`))
	f.Add([]byte(`{"format_version": 2}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		record, err := UnmarshalRecord(data)
		if err != nil {
			return
		}
		written, err := MarshalRecord(record)
		require.NoError(t, err)
		read, err := UnmarshalRecord(written)
		require.NoError(t, err, "%s", written)
		again, err := MarshalRecord(read)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(again))
		assert.Equal(t, record.Key(), read.Key())
		assert.Len(t, read.Unknown, len(record.Unknown))
	})
}
