// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package runbook

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// blockTimeout limits one block. Commands that wait have shorter timeouts of their own.
const blockTimeout = 20 * time.Minute

// Tools are what an administrator has.
type Tools struct {
	// Root is the repository. Its folder manifests is in the folder of the shell.
	Root string
	// Kubeconfig is that of the cluster.
	Kubeconfig string
	// Programs are the paths of programs by the names under which they are called.
	Programs map[string]string
}

// Procedure is a run of a procedure. Run and Do perform its steps in their order. At the
// end of the test, a step that was not performed fails it.
type Procedure struct {
	t       testing.TB
	heading string
	steps   []step
	next    int
	shell   *shell
}

// StartProcedure starts the procedure with a heading. The values are those of its
// variables, all of them.
func StartProcedure(t testing.TB, heading string, tools Tools, values map[string]string) *Procedure {
	t.Helper()
	sections, err := readDocument(tools.Root)
	require.NoError(t, err)
	found, err := find(sections, heading)
	require.NoError(t, err)
	parsed, err := found.parse()
	require.NoError(t, err)
	settings, err := set(parsed.variables, values)
	require.NoError(t, err, "section %q", heading)

	bin, dir := t.TempDir(), t.TempDir()
	for name, path := range tools.Programs {
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	require.NoError(t, os.Symlink(filepath.Join(tools.Root, "manifests"), filepath.Join(dir, "manifests")))
	shell, err := startShell(context.WithoutCancel(t.Context()), dir, t.TempDir(), append(os.Environ(),
		"KUBECONFIG="+tools.Kubeconfig, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH")))
	require.NoError(t, err)
	p := &Procedure{t: t, heading: heading, steps: parsed.steps, shell: shell}
	t.Cleanup(func() {
		shell.stop()
		if p.next < len(p.steps) && !t.Failed() && !t.Skipped() {
			t.Errorf("%q: steps %d to %d were not performed", heading, p.next+1, len(p.steps))
		}
	})
	printed, err := shell.run(t.Context(), settings)
	require.NoError(t, err, printed)
	return p
}

// set returns a block that gives the variables their values.
func set(variables []variable, values map[string]string) (string, error) {
	var block strings.Builder
	left := maps.Clone(values)
	for _, v := range variables {
		value, found := left[v.name]
		if !found {
			return "", fmt.Errorf("no value for variable %s", v.name)
		}
		delete(left, v.name)
		if v.exported {
			block.WriteString("export ")
		}
		fmt.Fprintf(&block, "%s='%s'\n", v.name, strings.ReplaceAll(value, "'", `'\''`))
	}
	if len(left) > 0 {
		return "", fmt.Errorf("no variables %v", slices.Sorted(maps.Keys(left)))
	}
	return block.String(), nil
}

// Dir is the folder of the shell, in which the reader edits files.
func (p *Procedure) Dir() string { return p.shell.dir }

// Run runs the blocks of the next step, whose text begins with text.
func (p *Procedure) Run(text string) {
	p.t.Helper()
	next := p.take(text)
	if len(next.blocks) == 0 {
		p.t.Fatalf("%q: step %d has no block: %s", p.heading, p.next, next.text)
	}
	for _, block := range next.blocks {
		ctx, cancel := context.WithTimeout(p.t.Context(), blockTimeout)
		printed, err := p.shell.run(ctx, block)
		cancel()
		if err != nil {
			p.t.Fatalf("%q: step %d: %v\n%s", p.heading, p.next, err, printed)
		}
		p.t.Logf("%q, step %d:\n%s", p.heading, p.next, printed)
	}
}

// Do performs the next step, whose text begins with text and which has no block.
func (p *Procedure) Do(text string, perform func()) {
	p.t.Helper()
	if next := p.take(text); len(next.blocks) > 0 {
		p.t.Fatalf("%q: step %d has a block: %s", p.heading, p.next, next.text)
	}
	perform()
}

func (p *Procedure) take(text string) step {
	p.t.Helper()
	if p.next == len(p.steps) {
		p.t.Fatalf("%q has %d steps, none of them begins with %q", p.heading, len(p.steps), text)
	}
	next := p.steps[p.next]
	p.next++
	if !strings.HasPrefix(next.text, text) {
		p.t.Fatalf("%q: step %d is %q, the test expects %q", p.heading, p.next, next.text, text)
	}
	return next
}
