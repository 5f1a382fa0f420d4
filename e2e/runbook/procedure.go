// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package runbook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// blockTimeout limits one block. Commands that wait have shorter timeouts of their own.
const blockTimeout = 20 * time.Minute

// Tools are the files and programs of an administrator.
type Tools struct {
	// Root is the repository. Its folder manifests is in the folder of the shell.
	Root string
	// Kubeconfig is the path of the kubeconfig of the cluster.
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

// StartProcedure starts the procedure with a heading. values has a value for each of its
// variables.
func StartProcedure(t testing.TB, heading string, tools Tools, values map[string]string) *Procedure {
	t.Helper()
	sections, err := readDocuments(tools.Root)
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

// shell is a bash into which blocks are pasted one after the other, as a reader does: variables,
// functions and the folder of a block stay for the next block. It exits after the first command
// that fails.
type shell struct {
	// dir is the folder that the shell begins in.
	dir string
	// state has the blocks and what they print.
	state string

	command *exec.Cmd
	stdin   io.WriteCloser
	output  *os.File
	// done has a line for each block that has succeeded.
	done   *bufio.Reader
	blocks int
}

// startShell starts a shell in the folder dir that runs until ctx is done.
func startShell(ctx context.Context, dir, state string, environment []string) (*shell, error) {
	output, err := os.Create(filepath.Join(state, "output"))
	if err != nil {
		return nil, err
	}
	done, succeeded, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, output.Close())
	}
	defer func() { _ = succeeded.Close() }()
	s := &shell{dir: dir, state: state, output: output, done: bufio.NewReader(done)}
	s.command = exec.CommandContext(ctx, "bash", "--noprofile", "--norc", "-euxo", "pipefail")
	s.command.Dir, s.command.Env = dir, environment
	s.command.Stdout, s.command.Stderr = output, output
	s.command.ExtraFiles = []*os.File{succeeded} // descriptor 3
	if s.stdin, err = s.command.StdinPipe(); err != nil {
		return nil, err
	}
	return s, s.command.Start()
}

// run runs a block, and returns what it prints.
func (s *shell) run(ctx context.Context, block string) (string, error) {
	s.blocks++
	path := filepath.Join(s.state, fmt.Sprintf("block-%d.sh", s.blocks))
	if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
		return "", err
	}
	before, err := s.output.Stat()
	if err != nil {
		return "", err
	}
	// A block that reads its standard input must not read the next command.
	_, err = fmt.Fprintf(s.stdin, ". '%s' </dev/null; echo done >&3\n", path)
	if err != nil {
		return "", fmt.Errorf("the shell has exited: %w", err)
	}
	succeeded := make(chan error, 1)
	go func() {
		_, err := s.done.ReadString('\n')
		succeeded <- err
	}()
	select {
	case err = <-succeeded:
	case <-ctx.Done():
		err = ctx.Err()
	}
	printed, readErr := os.ReadFile(s.output.Name())
	if err != nil {
		err = errors.New("a command has failed")
		if ctx.Err() != nil {
			err = fmt.Errorf("the block has not ended: %w", ctx.Err())
		}
	}
	return string(printed[min(before.Size(), int64(len(printed))):]), errors.Join(err, readErr)
}

// stop ends the shell.
func (s *shell) stop() {
	_ = s.stdin.Close()
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	_ = s.output.Close()
}
