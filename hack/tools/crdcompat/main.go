// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command crdcompat compares the CRDs in folders of a repository with the CRDs of the last
// release, and fails if a change breaks clients or stored objects. Without a release there is
// nothing to compare.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/crdify/pkg/config"
	"sigs.k8s.io/crdify/pkg/runner"
	"sigs.k8s.io/crdify/pkg/validations"
	"sigs.k8s.io/yaml"
)

func main() {
	root := flag.String("root", ".", "root folder of the repository")
	accepted := flag.String("accepted", "", "file with the changes that are accepted although they break, relative to the root folder")
	flag.Parse()
	c := comparison{root: *root, accepted: *accepted, folders: flag.Args(), output: os.Stdout}
	if err := c.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "crdcompat:", err)
		os.Exit(1)
	}
}

// comparison compares the CRDs in folders of a repository.
type comparison struct {
	root, accepted string
	folders        []string
	output         io.Writer
}

// changes are the changes that break, by where they are: "CRD VERSION FIELD RULE".
type changes map[string]string

func (c comparison) run(ctx context.Context) error {
	releases := c.releases(ctx)
	if len(releases) == 0 {
		fmt.Fprintln(c.output, "There is no release whose CRDs could be compared.")
		return nil
	}
	accepted, err := c.readAccepted()
	if err != nil {
		return err
	}
	unused := make(map[string]bool, len(accepted))
	for _, where := range accepted {
		unused[where] = true
	}
	var problems []error
	for _, release := range releases {
		found, err := c.since(ctx, release)
		if err != nil {
			return err
		}
		for _, where := range slices.Sorted(maps.Keys(found)) {
			delete(unused, where)
			if !slices.Contains(accepted, where) {
				problems = append(problems, fmt.Errorf("since %s: %s: %s", release, where, found[where]))
			}
		}
		fmt.Fprintf(c.output, "Compared the CRDs with %s. Breaking changes: %d; accepted: %d.\n", release, len(found), len(accepted))
	}
	for _, where := range slices.Sorted(maps.Keys(unused)) {
		problems = append(problems, fmt.Errorf("%s accepts a change that does not exist: %s", c.accepted, where))
	}
	return errors.Join(problems...)
}

// releases returns the tags of the last release before HEAD and, if HEAD is a release, of HEAD:
// with it changes are compared that are not committed yet.
func (c comparison) releases(ctx context.Context) []string {
	var releases []string
	for _, revision := range []string{"HEAD^", "HEAD"} {
		// It fails without a tag, without such a commit, and outside of a repository.
		tag, err := c.git(ctx, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", revision)
		if err == nil && !slices.Contains(releases, strings.TrimSpace(tag)) {
			releases = append(releases, strings.TrimSpace(tag))
		}
	}
	return releases
}

// readAccepted returns the lines of the file with accepted changes, without comments.
func (c comparison) readAccepted() ([]string, error) {
	if c.accepted == "" {
		return nil, nil
	}
	text, err := os.ReadFile(filepath.Join(c.root, c.accepted))
	if err != nil {
		return nil, fmt.Errorf("read the accepted changes: %w", err)
	}
	var accepted []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line != "" {
			accepted = append(accepted, line)
		}
	}
	return accepted, nil
}

// since returns the changes since a release that break.
func (c comparison) since(ctx context.Context, release string) (changes, error) {
	compare, err := newRunner()
	if err != nil {
		return nil, err
	}
	found := changes{}
	for _, folder := range c.folders {
		listed, err := c.git(ctx, "ls-tree", "--name-only", release, folder+"/")
		if err != nil {
			return nil, err
		}
		for name := range strings.FieldsSeq(listed) {
			if path.Ext(name) != ".yaml" {
				continue
			}
			text, err := c.git(ctx, "show", release+":"+name)
			if err != nil {
				return nil, err
			}
			before, err := parse(name, []byte(text))
			if err != nil {
				return nil, err
			}
			if before == nil {
				continue
			}
			after, err := c.current(name)
			if err != nil {
				return nil, err
			}
			if after == nil {
				found[before.Name+" * * removed"] = name + " does not exist any more"
				continue
			}
			found.add(before, after, compare.Run(before, after))
		}
	}
	return found, nil
}

func newRunner() (*runner.Runner, error) {
	settings := &config.Config{
		Validations: []config.ValidationConfig{
			{Name: "description", Enforcement: config.EnforcementPolicyNone},
			// Clients must expect values that they do not know.
			{Name: "enum", Enforcement: config.EnforcementPolicyError, Configuration: map[string]any{"additionPolicy": "Allow"}},
		},
		// A rule, a pattern, a type of list: only a person can say whether the change breaks.
		UnhandledEnforcement: config.EnforcementPolicyError,
	}
	if err := config.ValidateConfig(settings); err != nil {
		return nil, fmt.Errorf("configure the comparison: %w", err)
	}
	compare, err := runner.New(settings, runner.DefaultRegistry())
	if err != nil {
		return nil, fmt.Errorf("configure the comparison: %w", err)
	}
	return compare, nil
}

// current returns a CRD in the work tree, nil if the file does not exist.
func (c comparison) current(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := os.ReadFile(filepath.Join(c.root, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a CRD: %w", err)
	}
	return parse(name, text)
}

// parse returns the CRD in a file, nil if the file has another object.
func parse(name string, text []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(text, definition); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if definition.Kind != "CustomResourceDefinition" {
		return nil, nil
	}
	return definition, nil
}

// add adds what the comparison of a CRD has found.
func (found changes) add(before, after *apiextensionsv1.CustomResourceDefinition, results *runner.Results) {
	add := func(version, field, rule, text string) {
		where := strings.Join([]string{before.Name, version, field, rule}, " ")
		found[where] = strings.Trim(found[where]+"; "+text, "; ")
	}
	for _, version := range before.Spec.Versions {
		served := slices.ContainsFunc(after.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name == version.Name && v.Served
		})
		if version.Served && !served {
			add(version.Name, "*", "removed", "the version is not served any more")
		}
	}
	for _, result := range results.CRDValidation {
		for _, text := range result.Errors {
			add("*", "*", result.Name, text)
		}
	}
	for _, versions := range []map[string]map[string][]validations.ComparisonResult{results.SameVersionValidation, results.ServedVersionValidation} {
		for version, fields := range versions {
			for field, rules := range fields {
				for _, result := range rules {
					for _, text := range result.Errors {
						add(version, strings.TrimPrefix(field, "^"), result.Name, text)
					}
				}
			}
		}
	}
}

// git returns what a git command prints.
func (c comparison) git(ctx context.Context, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, "git", arguments...)
	command.Dir = c.root
	var failure strings.Builder
	command.Stderr = &failure
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(arguments, " "), err, failure.String())
	}
	return string(output), nil
}
