// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInotifyLimitIsOnlyRaised(t *testing.T) {
	t.Parallel()
	for before, want := range map[string]string{"128\n": "1024", "1023\n": "1024", "1024\n": "1024\n", "8192\n": "8192\n"} {
		file := filepath.Join(t.TempDir(), "max_user_instances")
		require.NoError(t, os.WriteFile(file, []byte(before), 0o600))
		require.NoError(t, allowInotify(file))
		after, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, want, string(after), "limit that was %q", before)
	}
}

func TestInotifyLimitIsUnreadable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "max_user_instances")
	require.ErrorContains(t, allowInotify(file), "read the limit of inotify instances")
	require.NoError(t, os.WriteFile(file, []byte("many"), 0o600))
	require.ErrorContains(t, allowInotify(file), "read the limit of inotify instances")
}
