// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/storage/file"
)

func TestTheCAIsReplacedOnlyWhenAllHaveFollowed(t *testing.T) {
	bucket, key, made := newBucket(t, "")
	t.Setenv("NSTANCE_CA_TEST_KEY", key)
	flags := []string{"--storage", "file", "--storage-bucket", bucket}
	withKey := append([]string{"--key", "NSTANCE_CA_TEST_KEY"}, flags...)
	store, err := file.Open(bucket)
	require.NoError(t, err)
	_, err = store.Create(t.Context(), "config/us-west-2a.jsonc", []byte("{}"))
	require.NoError(t, err)
	ca := func(args ...string) (string, error) {
		return run(t, append(append([]string{"ca"}, args...), withKey...)...)
	}
	old := made.Authority.Fingerprints()[0]
	assert.Contains(t, mustRun(t, append([]string{"ca", "status"}, flags...)...), "The CA is not being replaced.")

	_, err = ca("switch")
	wantError(t, err, `the phase is "", needs to be "accept"`)
	_, err = ca("begin")
	require.NoError(t, err)
	accepted := authorities.Fingerprints([]byte(mustRun(t, append([]string{"cluster", "ca"}, withKey...)...)))
	require.Len(t, accepted, 2)
	assert.Equal(t, old, accepted[0])
	output := mustRun(t, append([]string{"ca", "status"}, flags...)...)
	assert.Regexp(t, old+" +issues\n"+accepted[1]+" +next, accepted\n", output)
	assert.Regexp(t, "shard/us-west-2a +no server of the shard has loaded", output)

	_, err = ca("switch")
	wantError(t, err, "--without", "shard/us-west-2a no server of the shard")
	_, err = ca("switch", "--without", "shard/us-west-2a")
	require.NoError(t, err)
	_, err = ca("finish")
	wantError(t, err, "shard/us-west-2a no server of the shard")
	_, err = ca("cancel")
	wantError(t, err, `the phase is "issue", needs to be "accept"`)
	require.NoError(t, clusterkeys.StoreLoaded(t.Context(), store, "us-west-2a", "1", []string{accepted[1], old}))
	assert.Contains(t, mustRun(t, append([]string{"ca", "status"}, flags...)...), "All have followed phase issue.")
	_, err = ca("finish")
	require.NoError(t, err)
	assert.Equal(t, accepted[1:], authorities.Fingerprints([]byte(mustRun(t, append([]string{"cluster", "ca"}, withKey...)...))))
	assert.Equal(t, []string{
		`Audit: replace CA "switch" of /: command`, // refused by the phase
		`Audit: replace CA "begin" of /: command`,
		`Audit: replace CA "switch" of /: command, without shard/us-west-2a`,
		`Audit: replace CA "cancel" of /: command`, // refused by the phase
		`Audit: replace CA "finish" of /: command`,
	}, auditLog(t, store))
}
