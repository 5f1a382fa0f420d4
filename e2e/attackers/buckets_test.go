// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/storage"
)

// Who may read the bucket finds no secret, and who may write to it, without the encryption key, has
// no machine send the keys of the cluster to him.
func TestBucket(t *testing.T) {
	t.Parallel()
	_, folder := machineOf(t, victims, "recv/victim.json")
	seed := env.Installation.Authority().KeySeeds()[0]
	confidential := map[string]string{
		"a secret": victimSecret, "a nonce": nonceOf(t, folder), "a private key": "PRIVATE KEY",
		"the seed of the CA": string(seed), "the seed of the CA in base64": base64.StdEncoding.EncodeToString(seed),
	}
	objects := 0
	err := filepath.WalkDir(env.Installation.Bucket(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return ignoreMissing(err)
		}
		data, err := os.ReadFile(path)
		objects++
		for what, text := range confidential {
			assert.False(t, bytes.Contains(data, []byte(text)), "%s has %s", path, what)
		}
		return ignoreMissing(err)
	})
	require.NoError(t, err)
	assert.Greater(t, objects, 10, "objects of the bucket")

	// Copies of the keys under names that files may have.
	copies := map[string]string{"ca-thief": storage.AuthoritySecret, "nonce-thief": storage.NonceSecret}
	configuration := machineConfig()
	templates, groups := configuration["templates"].(object), configuration["groups"].(object)[installation.Tenant].(object)
	for group, from := range copies {
		data, err := os.ReadFile(bucketObject(storage.SecretPrefix + from))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(bucketObject(storage.SecretPrefix+group), data, 0o600))
		template := maps.Clone(templates[intruders].(object))
		template["files"] = object{"copy.key": object{"kind": "secret", "source": group}}
		templates[group], groups[group] = template, object{"template": group, "size": 1}
	}
	require.NoError(t, writeMachineConfig(configuration))
	t.Cleanup(func() { assert.NoError(t, writeMachineConfig(machineConfig())) })
	for group := range copies {
		_, folder := machineOf(t, group, "identity/identity.crt")
		testcluster.Eventually(t, timeout, "the copy "+group+" is refused", func(context.Context) error {
			if _, err := os.Stat(filepath.Join(folder, "recv", "copy.key")); err == nil {
				assert.NotContains(t, readFile(t, folder, "recv", "copy.key"), "PRIVATE KEY", "a file of a machine")
				return nil
			}
			for line := range strings.Lines(readFile(t, env.Component(machines.component).LogPath())) {
				if strings.Contains(line, storage.SecretPrefix+group) && strings.Contains(line, "does not bind it to its name") {
					return nil
				}
			}
			return fmt.Errorf("the log has no line about secret %q", group)
		})
	}
}

// ignoreMissing returns nil if an object was removed since it was listed.
func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
