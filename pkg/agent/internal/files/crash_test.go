// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/testing/runtest"
)

var modified = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)

// Variables of the child process.
const (
	folderVariable   = "NSTANCE_TEST_FOLDER"
	stepVariable     = "NSTANCE_TEST_STEP"
	completeVariable = "NSTANCE_TEST_COMPLETE"
)

// maxLife ends child processes that were not killed.
const maxLife = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(folderVariable) == "" {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var (
	oldFiles = map[string]string{"a.env": "A=1", "b.json": "1", "kept.json": "[]"}
	newFiles = map[string]string{"a.env": "A=2", "b.json": "2", "c.json": "2", "d.env": "D=2"}
)

// ofUserdata is the name of the start with files of userdata, which a complete patch keeps.
const ofUserdata = "on files of userdata"

// starts are the states in which a patch of newFiles is applied, by name.
var starts = map[string]func(*testing.T, *machine){
	"on no files": func(_ *testing.T, m *machine) { m.open() },
	"on files of another patch": func(t *testing.T, m *machine) {
		apply(t, m.open(), "old", oldFiles)
	},
	ofUserdata: func(t *testing.T, m *machine) {
		m.open()
		for name, content := range oldFiles {
			require.NoError(t, os.WriteFile(filepath.Join(m.received(), name), []byte(content), 0o640))
		}
	},
	"after a patch that was refused": func(t *testing.T, m *machine) {
		s := m.open()
		apply(t, s, "old", oldFiles)
		_, err := s.Apply(patchOf(map[string]string{"b.json": "{"}), "bad")
		require.Error(t, err)
	},
}

// Whenever the process is killed, all files of a patch are visible, or all files before it,
// even before the next process starts. The next process stores the hash.
func TestPatchIsAppliedOrNotWhenTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	for name, start := range starts {
		for _, complete := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, complete %t", name, complete), func(t *testing.T) {
				killAtEachStep(t, start, complete, complete && name != ofUserdata)
			})
		}
	}
}

// killAtEachStep applies newFiles, which may be complete and may remove the files before.
func killAtEachStep(t *testing.T, start func(*testing.T, *machine), complete, removes bool) {
	t.Helper()
	applied, steps := 0, 0
	for step := 1; ; step++ {
		m := newMachine(t, t.TempDir())
		start(t, m)
		before, hashBefore := m.content(), m.hash()
		killed := applyInAChild(t, m.folder, step, complete)
		after := maps.Clone(before)
		if removes {
			clear(after)
		}
		maps.Copy(after, newFiles)
		isApplied := m.checkAllOrNothing(before, after)
		s := m.open()
		m.checkRecovered(before, hashBefore, after, isApplied)
		if isApplied {
			applied++
		}
		patch := patchOf(newFiles)
		patch.Complete = complete
		_, err := s.Apply(patch, "new")
		require.NoError(t, err)
		m.checkRecovered(before, hashBefore, after, true)
		if !killed {
			assert.True(t, isApplied)
			break
		}
		steps++
	}
	assert.Greater(t, steps, 8, "steps at which the process was killed")
	assert.Greater(t, applied, 2, "kills after the patch became visible")
}

// checkAllOrNothing fails the test unless the visible files equal before or after. It
// reports whether they equal after.
func (m *machine) checkAllOrNothing(before, after map[string]string) bool {
	m.t.Helper()
	got := m.content()
	if !maps.Equal(got, before) && !maps.Equal(got, after) {
		m.t.Errorf("got  %v\nwant %v\nor   %v", got, before, after)
	}
	return maps.Equal(got, after)
}

// checkRecovered checks the folder of a process that has started again.
func (m *machine) checkRecovered(before map[string]string, hashBefore string, after map[string]string, applied bool) {
	m.t.Helper()
	want, hash := before, hashBefore
	if applied {
		want, hash = after, "new"
		assert.NotEmpty(m.t, m.marker())
	}
	assert.Equal(m.t, want, m.content())
	assert.Equal(m.t, hash, m.hash())
	assert.LessOrEqual(m.t, m.versions(), 1)
	entries, err := filepath.Glob(filepath.Join(m.received(), "[a-z]*.*"))
	require.NoError(m.t, err)
	for _, entry := range entries {
		_, err := os.Stat(entry)
		assert.NoError(m.t, err, "the link of a file that does not exist")
	}
	_, err = os.Lstat(filepath.Join(m.received(), nextLink))
	assert.ErrorIs(m.t, err, os.ErrNotExist)
}

// applyInAChild applies newFiles in a process that is killed before a step, and reports
// whether it was killed.
func applyInAChild(t *testing.T, folder string, step int, complete bool) (killed bool) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), folderVariable+"="+folder, stepVariable+"="+strconv.Itoa(step), completeVariable+"="+strconv.FormatBool(complete))
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	require.NoError(t, err, string(output))
	return false
}

// child applies newFiles, or patches until it is killed.
func child() error {
	id, err := identity.Open(filepath.Join(os.Getenv(folderVariable), "identity"), 0o600, instanceID)
	if err != nil {
		return err
	}
	left, err := strconv.Atoi(os.Getenv(stepVariable))
	if err != nil {
		return err
	}
	endless := left == 0
	s, err := recovered(os.Getenv(folderVariable), id, func() {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		return err
	}
	if !endless {
		patch := patchOf(newFiles)
		patch.Complete = os.Getenv(completeVariable) == "true"
		_, err := s.Apply(patch, "new")
		return err
	}
	for i, begin := 0, time.Now(); time.Since(begin) < maxLife; i++ {
		hash, files := generation(i)
		if err := applyPatch(s, hash, files); err != nil {
			return err
		}
	}
	return nil
}

func applyPatch(s *Store, hash string, files map[string]string) error {
	_, err := s.Apply(patchOf(files), hash)
	return err
}

// generation returns files that all have the same content.
func generation(i int) (hash string, files map[string]string) {
	hash, files = strconv.Itoa(i), map[string]string{}
	for name := range 5 {
		files[fmt.Sprintf("%d.json", name)] = hash
	}
	return hash, files
}

// Unlike the steps, this also kills within them.
func TestKillsAtAnyMoment(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	m := newMachine(t, folder)
	m.open()
	for range 25 {
		before := m.hash()
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), folderVariable+"="+folder, stepVariable+"=0")
		require.NoError(t, command.Start())
		runtest.Eventually(t, "the process applies patches", func() bool { return m.hash() != before && m.hash() != "0" })
		require.NoError(t, command.Process.Kill())
		_ = command.Wait()
		content := m.content()
		for name, text := range content {
			if text != content["0.json"] {
				t.Fatalf("%s is of generation %s, others are of %s", name, text, content["0.json"])
			}
		}
		require.Len(t, content, 5)
		m.open()
		assert.Equal(t, content["0.json"], m.hash())
		assert.Equal(t, 1, m.versions())
	}
}

// A process that is killed while it recovers leaves what the next one recovers.
func TestRecoveryIsKilledToo(t *testing.T) {
	t.Parallel()
	for _, step := range []int{1, 9, 17, 19, 21} {
		for second := 1; ; second++ {
			m := newMachine(t, t.TempDir())
			starts["on files of another patch"](t, m)
			before := m.content()
			after := maps.Clone(before)
			maps.Copy(after, newFiles)
			m.applyUntil(step)
			isApplied := m.checkAllOrNothing(before, after)
			interrupted := m.applyUntil(second)
			isApplied = m.checkAllOrNothing(before, after) || isApplied
			m.open()
			m.checkRecovered(before, "old", after, isApplied)
			if !interrupted {
				break
			}
		}
	}
}

// applyUntil opens the store and applies newFiles up to a step, in this process. The files
// on disk are the same as after a kill.
func (m *machine) applyUntil(step int) (interrupted bool) {
	m.t.Helper()
	type interruption struct{}
	defer func() {
		if r := recover(); r != nil {
			if _, interrupted = r.(interruption); !interrupted {
				panic(r)
			}
		}
	}()
	s, err := recovered(m.folder, m.identity, func() {
		if step--; step == 0 {
			panic(interruption{})
		}
	})
	require.NoError(m.t, err)
	apply(m.t, s, "new", newFiles)
	return false
}
