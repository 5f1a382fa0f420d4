// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rights

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nstance.dev/operator/e2e/controlplane"
)

// FolderVariable is the environment variable with the folder of the records. Without it
// nothing is recorded.
const FolderVariable = "NSTANCE_E2E_RIGHTS"

// Record writes the rights that a user has used in a cluster to a file of that name in the
// folder, in place of what an earlier run wrote. A request for which the manifests grant no
// right is an error.
func Record(name string, log controlplane.AuditLog, user, manifests string) error {
	used, refused, err := Used(log, user)
	if err != nil {
		return err
	}
	granted, err := Granted(manifests)
	if err != nil {
		return err
	}
	if lacking := missing(refused, granted); len(lacking) > 0 {
		first := lacking[0]
		return fmt.Errorf("%s lacks the right to %s %s/%s, and %d others", user, first.Action(), first.Namespace, first.Name, len(lacking)-1)
	}
	folder := os.Getenv(FolderVariable)
	if folder == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(folder, name+suffix), []byte(strings.Join(used, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("record the rights that were used: %w", err)
	}
	return nil
}

// suffix is the end of the names of records.
const suffix = ".txt"

// Recorded returns the rights that the records in a folder have, sorted, and the number of
// records.
func Recorded(folder string) (used []string, records int, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*"+suffix))
	if err != nil {
		return nil, 0, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, 0, fmt.Errorf("read the rights that were used: %w", err)
		}
		used = append(used, strings.Split(strings.TrimSpace(string(data)), "\n")...)
	}
	slices.Sort(used)
	return slices.Compact(used), len(files), nil
}
