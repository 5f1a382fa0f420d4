// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/admin"
)

// Admin runs an nstance-admin command on the storage of the servers, and returns what it
// prints. Commands of the family cluster get the encryption key.
func (n *Installation) Admin(ctx context.Context, args ...string) (string, error) {
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	flags := []string{"--storage", "file", "--storage-bucket", n.Bucket()}
	if args[0] == "cluster" {
		flags = append(flags, "--key-provider", "file", "--key", n.encryptionKeyFile())
	}
	command.SetArgs(slices.Concat(args, flags))
	if err := command.ExecuteContext(ctx); err != nil {
		return "", fmt.Errorf("nstance-admin %s: %w", strings.Join(args, " "), err)
	}
	return output.String(), nil
}
