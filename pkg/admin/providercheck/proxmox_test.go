// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// commandEnv makes the test binary the program nstance-admin.
const commandEnv = "NSTANCE_TEST_ADMIN"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := admin.SignalContext()
	err := admin.NewCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(admin.ExitCode(err))
}

const proxmoxConfig = `{
	"cluster": {"id": "prod", "secrets": {"encryption_key": {"env": "NSTANCE_ENCRYPTION_KEY"}}},
	"shard": {
		"id": "a",
		"infra": {"provider": "proxmox", "region": "region", "zone": "zone", "options": {
			"endpoints": [%q], "fingerprints": [%q], "token": {"env": "NSTANCE_TEST_PROXMOX_TOKEN"},
			"nodes": ["pve1"], "template": "debian", "iso_storage": "local", "agent": false,
			"subnets": {"subnet": {"bridge": "vmbr0", "storage": "ceph"}},
			"instance_types": {"small": {"cpu": "1", "memory": "1Gi", "arch": "amd64"}},
		}},
		"bind": {"health_addr": ":1", "election_addr": ":2", "registration_addr": ":3", "operator_addr": ":4"},
		"subnet_pools": {"default": ["subnet"]},
	},
	"templates": {"worker": {"kind": "knd", "arch": "amd64", "instance_type": "small", "subnet_pool": "default"}},
}`

// TestProxmox runs the program: it is killed while it clones, it is interrupted while the machine
// starts, stopped then, it loses its terminal then, and it runs to its end, with one endpoint and with
// two. At last it is stopped at steps and questions.
func TestProxmox(t *testing.T) {
	t.Parallel()
	s := pvetest.New("pve1")
	s.CloneTime, s.TaskTime, s.ReportInterval, s.SyncDelay = time.Second, 100*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
	s.AddTemplate(9000, "pve1", "debian", "ceph", 4)
	s.AddVM(10000, "pve1", "of-a-user", 0)
	s.Start(t)
	env := []string{"NSTANCE_TEST_PROXMOX_TOKEN=" + pvetest.Token}
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, proxmoxConfig, s.URL, s.Fingerprint), 0o600))

	output, code := runProgram(t, env, path, "create an instance", func(process *os.Process, _ io.Closer) {
		assert.Eventually(t, func() bool { return len(s.Made()) == 1 }, time.Minute, time.Millisecond)
		require.NoError(t, process.Kill())
	})
	assert.Equal(t, -1, code, output)
	require.Len(t, s.VMs(s.Made()[0].Name), 1, "virtual machines that the killed check has left")

	for n, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		output, code = runProgram(t, env, path, "wait until it runs", func(process *os.Process, _ io.Closer) {
			require.NoError(t, process.Signal(signal))
		})
		assert.Equal(t, 1, code, output)
		if n == 0 {
			assert.Contains(t, output, "remove what an earlier check has left ... ok")
			assert.Contains(t, output, s.Made()[0].Name)
		}
		assert.Contains(t, output, "remove what the check has created ... ok")
		expectNoMachine(t, s, 2+n)
	}

	output, code = runProgram(t, env, path, "wait until it runs", func(process *os.Process, stdout io.Closer) {
		require.NoError(t, stdout.Close())
		require.NoError(t, process.Signal(syscall.SIGHUP))
	})
	assert.Equal(t, 1, code, output)
	expectNoMachine(t, s, 4)

	output, code = runProgram(t, env, path, "", nil)
	assert.Equal(t, 0, code, output)
	for _, step := range append(append([]string{}, steps[:1]...), steps[2:]...) {
		assert.Contains(t, output, step+" ... ok")
	}
	expectNoMachine(t, s, 5)

	// A second endpoint is the same server by another name.
	local := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	text := strings.Replace(fmt.Sprintf(proxmoxConfig, s.URL, s.Fingerprint), fmt.Sprintf("%q", s.URL), fmt.Sprintf("%q, %q", s.URL, local), 1)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	output, code = runProgram(t, env, path, "", nil)
	assert.Equal(t, 0, code, output)
	asked := expectAnswers(t, output)
	assert.Contains(t, output, "ask about other nodes ... as expected")
	expectNoMachine(t, s, 7)
	stopEverywhere(t, env, path, asked, func() []string {
		var left []string
		for _, made := range s.Made() {
			if len(s.VMs(made.Name)) > 0 {
				left = append(left, made.Name)
			}
		}
		return append(left, s.ISOs()...)
	})
}

// expectNoMachine expects that the checks have cloned so many virtual machines, and that no
// virtual machine and no disk of them is left.
func expectNoMachine(t *testing.T, s *pvetest.Server, made int) {
	t.Helper()
	require.Len(t, s.Made(), made, "virtual machines that were ever cloned")
	for _, vm := range s.Made() {
		assert.Empty(t, s.VMs(vm.Name), "virtual machines of instance %s", vm.Name)
	}
	assert.Empty(t, s.ISOs())
	assert.Len(t, s.VMs("of-a-user"), 1)
}

// runProgram runs the check as a program and calls do when a step begins. It returns the
// standard output and the exit code, which is -1 after a signal.
func runProgram(t *testing.T, env []string, config, step string, do func(process *os.Process, stdout io.Closer), args ...string) (output string, code int) {
	t.Helper()
	program := exec.CommandContext(t.Context(), os.Args[0], append([]string{"provider", "check", "--config", config}, args...)...)
	program.Env = append(append(os.Environ(), commandEnv+"=1"), env...)
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	program.Stderr = log
	stdout, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	var printed strings.Builder
	for reader, done := bufio.NewReader(stdout), step == ""; ; {
		char, err := reader.ReadByte()
		if err != nil {
			break
		}
		printed.WriteByte(char)
		if !done && strings.HasSuffix(printed.String(), step+" ... ") {
			done = true
			do(program.Process, stdout)
		}
	}
	_ = program.Wait()
	logged, err := os.ReadFile(log.Name())
	require.NoError(t, err)
	return printed.String() + string(logged), program.ProcessState.ExitCode()
}
