// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessIDIsNotFooledByReuse(t *testing.T) {
	own, _, err := identify(os.Getpid())
	require.NoError(t, err)
	if !own.running() {
		t.Error("this process does not run, it seems")
	}
	reused := processID{PID: own.PID, StartTicks: own.StartTicks - 1}
	if reused.running() {
		t.Error("a process that started at another time is considered the recorded one")
	}
	if _, err := reused.open(); !errors.Is(err, errNotRunning) {
		t.Errorf("open a process that started at another time: %v, want %v", err, errNotRunning)
	}
}

func TestFailedStartShowsTheLog(t *testing.T) {
	c := &Component{dir: t.TempDir(), Spec: Spec{
		Name:  "broken",
		Argv:  []string{"/bin/sh", "-c", "echo no such flag; exit 3"},
		Ready: Probe{URL: "http://127.0.0.1:1/never"},
	}}
	err := c.Start(t.Context())
	if err == nil {
		t.Fatal("a component that exits at once is considered started")
	}
	for _, part := range []string{"broken", "exit status 3", "no such flag", c.LogPath()} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

func TestComponentsComeInTheOrderOfStarting(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"second-by-name", "first-by-name"} {
		r := record{Spec: Spec{Name: name}, Sequence: i, Process: processID{PID: 1, StartTicks: 1}}
		require.NoError(t, r.write(dir))
	}
	components, err := Components(dir)
	require.NoError(t, err)
	var names []string
	for _, c := range components {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "second-by-name first-by-name" {
		t.Errorf("components are listed as %q", got)
	}
}
