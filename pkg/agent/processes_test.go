// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/agent"
	"nstance.dev/operator/pkg/base/flagenv"
	"nstance.dev/operator/pkg/testing/runtest"
)

// agentVariable makes the test binary run an agent with the options of its environment.
const agentVariable = "TEST_RUN_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(agentVariable) == "" {
		os.Exit(m.Run())
	}
	options := agent.DefaultOptions()
	flags := pflag.NewFlagSet("agent", pflag.ExitOnError)
	options.AddFlags(flags)
	err := flagenv.Set(flags, os.LookupEnv)
	if err == nil {
		err = agent.Run(context.Background(), options)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// startProcess runs the agent in a process of its own until kill -9.
func (m *machine) startProcess() (kill func()) {
	m.t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), agentVariable+"=1",
		"NSTANCE_INSTANCE_ID="+m.Options.InstanceID,
		"NSTANCE_SERVER_REGISTRATION_ADDR="+m.Options.RegistrationAddress,
		"NSTANCE_SERVER_AGENT_ADDR="+m.Options.AgentAddress,
		"NSTANCE_IDENTITY_DIR="+m.Options.IdentityFolder,
		"NSTANCE_KEYS_DIR="+m.Options.KeysFolder,
		"NSTANCE_RECV_DIR="+m.Options.ReceiveFolder)
	require.NoError(m.t, command.Start())
	kill = func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	m.t.Cleanup(kill)
	return kill
}

// writing returns the number of files in the version that is being written, -1 if no
// version is being written.
func (m *machine) writing() int {
	current, _ := os.Readlink(filepath.Join(m.folder, "recv", "..data"))
	versions, _ := filepath.Glob(filepath.Join(m.folder, "recv", "..version-*"))
	for _, version := range versions {
		if filepath.Base(version) != current {
			entries, _ := os.ReadDir(version)
			return len(entries)
		}
	}
	return -1
}

// The process is killed while it writes a patch, at each number of its files. The server
// sends the patch again, and until then all files have their old content.
func TestPushSurvivesKillsOfTheAgent(t *testing.T) {
	t.Parallel()
	files := "{"
	for n := range 8 {
		files += fmt.Sprintf(`"%d.json": {"kind": "string", "string": "{{.Vars.value}}"},`, n)
	}
	files += "}"
	s := startWithFiles(t, files, "0")
	m := newMachine(t, s)
	kill := m.startProcess()
	value := 0
	applied := func() bool { return m.received("0.json") == strconv.Itoa(value) }
	runtest.Eventually(t, "the files are there", applied)
	during := 0
	for count := range 9 {
		value++
		setValue(s, files, strconv.Itoa(value))
		for written := -1; written < count && !applied(); written = m.writing() {
		}
		if kill(); !applied() {
			during++
		}
		var contents []string
		for n := range 8 {
			contents = append(contents, m.received(fmt.Sprintf("%d.json", n)))
		}
		if strings.Join(contents, "") != strings.Repeat(contents[0], 8) {
			t.Errorf("after a kill at %d files they have %q", count, contents)
		}
		kill = m.startProcess()
		runtest.Eventually(t, "the patch is applied", applied)
	}
	t.Logf("%d of 9 kills were before the patch was visible", during)
	assert.Greater(t, during, 0, "kills before the patch was visible")
}

// The process is killed after each number of files of a patch has arrived. The agent has
// written no file, and the server sends the patch again.
func TestPushSurvivesKillsWhileFilesArrive(t *testing.T) {
	t.Parallel()
	// More than the relay forwards at once.
	const count, size = 6, 100_000
	files := "{"
	for n := range count {
		files += fmt.Sprintf(`"%d.json": {"kind": "string", "string": "[{{.Vars.value}}%s]"},`, n, strings.Repeat(" ", size))
	}
	files += "}"
	s := startWithFiles(t, files, "0")
	m := newMachine(t, s)
	const unlimited = 1 << 40
	var left atomic.Int64
	var killed atomic.Bool
	left.Store(unlimited)
	r := &relay{
		cut:  func(bytes int) bool { return left.Add(-int64(bytes)) < 0 },
		lost: killed.Load,
	}
	m.Options.AgentAddress = r.listen(t, s.AgentAddr)
	kill := m.startProcess()
	have := func(value int) bool {
		return m.has("recv/..data") && slices.Equal(m.version(count), slices.Repeat([]string{strconv.Itoa(value)}, count))
	}
	runtest.Eventually(t, "the files are there", func() bool { return have(0) && m.has("recv/write-files.last") })
	for arrived := range count {
		value := arrived + 1
		killed.Store(false)
		r.closed.Store(false)
		left.Store(int64(arrived)*size + size/2)
		setValue(s, files, strconv.Itoa(value))
		runtest.Eventually(t, "the next file does not arrive", r.closed.Load)
		kill()
		assert.True(t, have(arrived), "after a kill at %d files they have %q", arrived, m.version(count))
		assert.Equal(t, -1, m.writing(), "files that were written of %d", arrived)
		left.Store(unlimited)
		killed.Store(true)
		kill = m.startProcess()
		// The version before is removed after that.
		runtest.Eventually(t, "the patch is applied", func() bool { return have(value) && m.writing() == -1 })
	}
}
