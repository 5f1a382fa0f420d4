// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package runbook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// shell is a bash into which blocks are pasted one after the other, as a reader does:
// variables, functions and the folder of one block are those of the next. It exits with
// the first command that fails.
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
