// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package previous

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"nstance.dev/operator/e2e/inputs"
)

// operatorChart is a file of the chart of the operator.
const operatorChart = "manifests/helm/nstance-operator/Chart.yaml"

// Charts returns a folder with the files of the version before this one that has the chart of the
// operator: the previous version, or the first commit with the chart if the previous version is older.
func Charts(ctx context.Context, root string) (string, error) {
	if err := inputs.Check(Input); err != nil {
		return "", err
	}
	revision, err := Revision(ctx, root)
	if err != nil {
		return "", err
	}
	if _, err := git(ctx, root, "cat-file", "-e", revision+":"+operatorChart); err != nil {
		added, err := git(ctx, root, "log", "--diff-filter=A", "--format=%H", "--", operatorChart)
		if err != nil {
			return "", err
		}
		commits := strings.Fields(added)
		if len(commits) == 0 {
			return "", errors.New("no commit has the chart of the operator")
		}
		revision = commits[len(commits)-1]
	}
	cache := filepath.Join(root, "e2e", ".cache", "previous", revision)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "source")
	return folder, source(ctx, root, revision, folder)
}
