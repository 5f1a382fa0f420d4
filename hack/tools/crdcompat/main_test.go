// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const released = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  scope: Namespaced
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [name]
            properties:
              name:
                description: name is the name.
                type: string
                maxLength: 63
                pattern: ^[a-z]*$
              policy:
                type: string
                enum: [Wait, Move]
`

// repository is a repository with a release.
type repository struct {
	t    *testing.T
	root string
}

func newRepository(t *testing.T, tag string) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "--quiet")
	r.write("crd/kustomization.yaml", "resources: [things.yaml]\n")
	r.write("crd/things.yaml", released)
	r.commit()
	if tag != "" {
		r.git("tag", tag)
	}
	return r
}

func (r repository) git(arguments ...string) {
	r.t.Helper()
	command := exec.CommandContext(r.t.Context(), "git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.com"}, arguments...)...)
	command.Dir = r.root
	if output, err := command.CombinedOutput(); err != nil {
		r.t.Fatalf("git %v: %v\n%s", arguments, err, output)
	}
}

func (r repository) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r repository) commit() {
	r.t.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "--message=change", "--allow-empty")
}

// compare returns the output and the error of a comparison.
func (r repository) compare(accepted string) (string, error) {
	r.t.Helper()
	var output bytes.Buffer
	err := comparison{root: r.root, folders: []string{"crd"}, accepted: accepted, output: &output}.run(r.t.Context())
	return output.String(), err
}

func TestChangesThatBreak(t *testing.T) {
	replaced := func(before, after string) string {
		changed := strings.Replace(released, before, after, 1)
		if changed == released {
			t.Fatalf("the definition does not contain %q", before)
		}
		return changed
	}
	for name, test := range map[string]struct{ changed, want string }{
		"nothing": {released, ""},
		"an optional field is added": {
			replaced("              policy:\n", "              size:\n                type: integer\n                maximum: 10\n              policy:\n"), ""},
		"a text is changed":     {replaced("name is the name.", "name is the id."), ""},
		"a value is added":      {replaced("[Wait, Move]", "[Wait, Move, Split]"), ""},
		"a limit is loosened":   {replaced("maxLength: 63", "maxLength: 253"), ""},
		"a field gets optional": {replaced("            required: [name]\n", ""), ""},
		"a field is removed": {
			replaced("              policy:\n                type: string\n                enum: [Wait, Move]\n", ""), "things.example.com * * existingFieldRemoval"},
		"a value is removed":        {replaced("[Wait, Move]", "[Wait]"), "things.example.com v1beta1 .spec.policy enum"},
		"a required field is added": {replaced("required: [name]", "required: [name, policy]"), "things.example.com v1beta1 .spec required"},
		"a new field is required": {
			replaced("required: [name]\n            properties:\n", "required: [name, size]\n            properties:\n              size:\n                type: integer\n"),
			"things.example.com v1beta1 .spec required"},
		"a limit is tightened":    {replaced("maxLength: 63", "maxLength: 32"), "things.example.com v1beta1 .spec.name maxLength"},
		"a limit is added":        {replaced("enum: [Wait, Move]", "enum: [Wait, Move]\n                maxLength: 4"), "things.example.com v1beta1 .spec.policy maxLength"},
		"a pattern is changed":    {replaced("^[a-z]*$", "^[a-z]+$"), "things.example.com v1beta1 .spec.name unhandled"},
		"a type is changed":       {replaced("type: string\n                maxLength: 63\n                pattern: ^[a-z]*$\n", "type: integer\n"), "things.example.com v1beta1 .spec.name type"},
		"the scope is changed":    {replaced("Namespaced", "Cluster"), "things.example.com * * scope"},
		"a version is removed":    {replaced("v1beta1", "v1"), "things.example.com v1beta1 * removed"},
		"a version is not served": {replaced("served: true", "served: false"), "things.example.com v1beta1 * removed"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t, "v0.1.0")
			r.commit()
			r.write("crd/things.yaml", test.changed)
			_, err := r.compare("")
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), "since v0.1.0: "+test.want+": ")) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

func TestARemovedDefinitionBreaks(t *testing.T) {
	r := newRepository(t, "v0.1.0")
	if err := os.Remove(filepath.Join(r.root, "crd/things.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.compare(""); err == nil || !strings.Contains(err.Error(), "things.example.com * * removed: crd/things.yaml does not exist") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutAReleaseNothingIsCompared(t *testing.T) {
	for name, root := range map[string]string{"no tag": newRepository(t, "").root, "another tag": newRepository(t, "nightly").root, "no repository": t.TempDir()} {
		if output, err := (repository{t, root}).compare(""); err != nil || !strings.Contains(output, "no release") {
			t.Errorf("%s: got %q, %v", name, output, err)
		}
	}
}

// A release is compared with the release before, and with what is changed after it.
func TestWhichReleasesAreCompared(t *testing.T) {
	r := newRepository(t, "v0.1.0")
	tightened := strings.Replace(released, "63", "32", 1)
	r.write("crd/things.yaml", tightened)
	r.commit()
	r.git("tag", "v0.2.0")
	if _, err := r.compare(""); err == nil || !strings.Contains(err.Error(), "since v0.1.0: ") {
		t.Errorf("the release: got %v", err)
	}
	r.commit()
	if _, err := r.compare(""); err != nil {
		t.Errorf("after the release: got %v", err)
	}
	r.write("crd/things.yaml", strings.Replace(released, "63", "16", 1))
	if _, err := r.compare(""); err == nil || !strings.Contains(err.Error(), "since v0.2.0: ") {
		t.Errorf("a later change: got %v", err)
	}
}

func TestAcceptedChanges(t *testing.T) {
	r := newRepository(t, "v0.1.0")
	const where = "things.example.com v1beta1 .spec.name maxLength"
	r.write("accepted", "# Accepted.\n\n"+where+" # no longer name was ever valid\n")
	if _, err := r.compare("accepted"); err == nil || !strings.Contains(err.Error(), "accepts a change that does not exist: "+where) {
		t.Errorf("without a change: got %v", err)
	}
	r.write("crd/things.yaml", strings.Replace(released, "63", "32", 1))
	if output, err := r.compare("accepted"); err != nil || !strings.Contains(output, "Breaking changes: 1; accepted: 1.") {
		t.Errorf("with the change: got %q, %v", output, err)
	}
	if _, err := r.compare("missing"); err == nil {
		t.Error("a missing file is no error")
	}
}
