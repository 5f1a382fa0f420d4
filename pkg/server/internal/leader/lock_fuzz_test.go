// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzParseLock reads arbitrary locks, as a writer of the bucket could store. A lock without a
// leader's field is an error, because its leader may be alive.
func FuzzParseLock(f *testing.F) {
	f.Add([]byte(`{"leaderID": "a", "releasedBy": "", "reign": "1", "process": "p", "leaderAddr": "10.0.0.2:8991", "lastUpdated": "2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"leaderID": "", "lastUpdated": "0000-01-01T00:00:00+24:00"}`))
	f.Add([]byte(`{"leaderid": null}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lock, err := parseLock(data)
		if err != nil {
			assert.Equal(t, Lock{}, lock)
			return
		}
		var fields map[string]any
		require.NoError(t, json.Unmarshal(data, &fields))
		assert.NotEmpty(t, fields)
		_ = lock.LastUpdated.Add(time.Hour)
	})
}
