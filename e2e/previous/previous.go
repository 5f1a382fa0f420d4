// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package previous finds the previous version of the project in the history of its
// repository, for tests of an upgrade.
package previous

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
)

// Input is the name of the previous version among the inputs of a suite of tests. Its digest
// is Revision.
const Input = "previous"

// Version is the previous version of the project.
type Version struct {
	// Source is the folder with its files.
	Source string
	// Operator and Server are the paths of its programs.
	Operator, Server string
}

// Build gets the files of the previous version, and builds its programs unless make has built
// them.
func Build(ctx context.Context, root string) (Version, error) {
	revision, err := Revision(ctx, root)
	if err != nil {
		return Version{}, err
	}
	cache := filepath.Join(root, "e2e", ".cache", "previous", revision)
	v := Version{
		Source:   filepath.Join(cache, "source"),
		Operator: filepath.Join(cache, "nstance-operator"),
		Server:   filepath.Join(cache, "nstance-server"),
	}
	if built, err := inputs.Built(Input); built || err != nil {
		return v, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Version{}, fmt.Errorf("build the previous version: %w", err)
	}
	if err := source(ctx, root, revision, v.Source); err != nil {
		return Version{}, err
	}
	builder := controlplane.Builder{Root: v.Source, CacheDir: cache, Progress: os.Stderr}
	v.Operator, v.Server, err = builder.Product(ctx)
	return v, err
}

// Variable is the environment variable that selects a commit or tag as the previous
// version.
const Variable = "NSTANCE_E2E_PREVIOUS"

// baseline is the commit that gave the API its names. It is the previous version as long as no
// version is tagged: a roll-back across it fails, because the API server rejects fields that the
// kinds no longer have.
const baseline = "53546f03"

// Revision returns the commit of the previous version. It is the first of these that exists: the
// commit in Variable, the last tag of a version before HEAD, the baseline, and the parent of HEAD,
// which a squashed history has too.
func Revision(ctx context.Context, root string) (string, error) {
	if selected := os.Getenv(Variable); selected != "" {
		revision, err := git(ctx, root, "rev-parse", "--verify", "--quiet", selected+"^{commit}")
		if err != nil {
			return "", fmt.Errorf("%s names %q, which the repository does not have: run git fetch origin %q", Variable, selected, selected)
		}
		return revision, nil
	}
	if tag, err := git(ctx, root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"); err == nil {
		return git(ctx, root, "rev-parse", "--verify", tag+"^{commit}")
	}
	if _, err := git(ctx, root, "merge-base", "--is-ancestor", baseline, "HEAD"); err == nil {
		return git(ctx, root, "rev-parse", "--verify", baseline+"^{commit}")
	}
	if revision, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "HEAD^"); err == nil {
		return revision, nil
	}
	if shallow, err := git(ctx, root, "rev-parse", "--is-shallow-repository"); err == nil && shallow == "true" {
		return "", errors.New("the clone has no history, and so no previous version: run git fetch --unshallow --tags, or set " + Variable)
	}
	return "", fmt.Errorf("%s is no clone of git, or has one commit only, and so no previous version: test in a clone with its history, or set %s", root, Variable)
}

// source writes the files of a commit to a folder, if it is not there yet.
func source(ctx context.Context, root, revision, folder string) error {
	if _, err := os.Stat(folder); err == nil {
		return nil
	}
	unfinished := folder + ".unfinished"
	if err := errors.Join(os.RemoveAll(unfinished), os.MkdirAll(unfinished, 0o755)); err != nil {
		return err
	}
	archive := filepath.Join(unfinished, ".archive.tar")
	if _, err := git(ctx, root, "archive", "--output", archive, revision); err != nil {
		return fmt.Errorf("get the files of %s: %w", revision, err)
	}
	if output, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", unfinished).CombinedOutput(); err != nil {
		return fmt.Errorf("get the files of %s: %w\n%s", revision, err, output)
	}
	return errors.Join(os.Remove(archive), os.Rename(unfinished, folder))
}

// git returns what a git command prints, without the line break at the end.
func git(ctx context.Context, root string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, "git", arguments...)
	command.Dir = root
	var failure strings.Builder
	command.Stderr = &failure
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(arguments, " "), err, failure.String())
	}
	return strings.TrimSpace(string(output)), nil
}

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
