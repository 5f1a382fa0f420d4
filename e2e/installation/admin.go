// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"nstance.dev/operator/pkg/admin"
)

// Admin runs an nstance-admin command of the family cluster on the storage of the
// servers, and returns what it prints.
func (n *Installation) Admin(ctx context.Context, args ...string) (string, error) {
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetArgs(append(args,
		"--storage", "file", "--storage-bucket", n.Bucket(),
		"--key-provider", "file", "--key", n.encryptionKeyFile()))
	if err := command.ExecuteContext(ctx); err != nil {
		return "", fmt.Errorf("nstance-admin %s: %w", strings.Join(args, " "), err)
	}
	return output.String(), nil
}
