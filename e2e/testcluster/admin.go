// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
)

// Admin runs an nstance-admin command on the storage of the servers, and returns what it
// prints. Commands of the family cluster get the encryption key.
func (c *Cluster) Admin(t testing.TB, args ...string) string {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	flags := []string{"--storage", "file", "--storage-bucket", c.Installation.Bucket()}
	if args[0] == "cluster" {
		flags = append(flags, "--key-provider", "file", "--key", c.Installation.EncryptionKeyFile())
	}
	command.SetArgs(slices.Concat(args, flags))
	require.NoError(t, command.ExecuteContext(t.Context()), "nstance-admin %s", args)
	return output.String()
}
