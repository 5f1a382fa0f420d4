// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// crashEnv has the crash of a process that this test binary is started as.
const crashEnv = "NSTANCE_TEST_QEMU_CRASH"

// crash is a call that is killed before one of its steps.
type crash struct {
	Options *Options
	Request cloud.Request
	// Terminate is true if the machine is launched and then terminated.
	Terminate bool
	// Step is the step before which the process is killed. Without one it is not killed, and
	// its output are the names of the steps.
	Step string
}

func TestMain(m *testing.M) {
	if text := os.Getenv(crashEnv); text != "" {
		if err := runUntilCrash([]byte(text)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runUntilCrash makes the calls of a crash in this process and kills it.
func runUntilCrash(text []byte) error {
	var c crash
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	api := NewAPI(c.Options, testShard)
	watching, last := !c.Terminate, ""
	api.step = func(name string) {
		switch {
		case !watching:
		case c.Step == name:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case name != last:
			fmt.Println(name)
			last = name
		}
	}
	ctx := context.Background()
	m, err := api.Launch(ctx, c.Request)
	if err != nil || !c.Terminate {
		return err
	}
	watching = true
	if err := api.Terminate(ctx, []cloud.VM{m})[m.ID]; err != nil {
		return err
	}
	for {
		_, found, err := api.Find(ctx, m.ID)
		if err != nil || !found {
			return err
		}
		time.Sleep(retryInterval)
	}
}

// run starts a process for the crash and returns the steps that it has made.
func (c crash) run(t *testing.T) (steps []string) {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed := ok && status.Signaled() && status.Signal() == syscall.SIGKILL
	require.True(t, c.Step == "" && err == nil || c.Step != "" && killed, "step %q: %v: %s", c.Step, err, stderr.String())
	return strings.Split(strings.TrimSpace(stdout.String()), "\n")
}

var (
	launchSteps = []string{
		"make the folder", "lock the folder", "write the identity", "write the userdata", "create the disk",
		"start QEMU", "wait for QEMU", "write that it was launched", "return the machine",
	}
	deletionSteps = []string{"write the deletion", "shut down the guest", "quit QEMU", "remove the folder"}
)

func TestServerIsKilledAtEachStepOfALaunch(t *testing.T) {
	all := crash{Options: testOptions(t, deafGuest), Request: request(t)}.run(t)
	require.Equal(t, launchSteps, all)
	for _, tc := range []struct {
		name string
		// next is the action of the next server.
		next func(t *testing.T, api *API, r cloud.Request)
	}{
		{"and the machine is launched again", launchAgain},
		{"and the machine is terminated", terminateWhatExists},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, step := range all {
				t.Run(step, func(t *testing.T) {
					c := crash{Options: testOptions(t, deafGuest), Request: request(t), Step: step}
					c.run(t)
					tc.next(t, NewAPI(c.Options, testShard), c.Request)
				})
			}
		})
	}
}

func launchAgain(t *testing.T, api *API, r cloud.Request) {
	list, err := api.List(t.Context())
	require.NoError(t, err)
	assert.LessOrEqual(t, len(list), 1)
	// The next server gives the instance another nonce.
	r.Userdata = []byte("other userdata")
	m, err := api.Launch(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, r.ID, m.ID)
	expectOneMachine(t, api, r.ID)
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{m}))
	awaitNothing(t, api)
}

func terminateWhatExists(t *testing.T, api *API, r cloud.Request) {
	await(t, "the machine is terminated", func() bool {
		list, err := api.List(t.Context())
		require.NoError(t, err)
		assert.LessOrEqual(t, len(list), 1)
		for _, m := range list {
			assert.Equal(t, r.ID, m.ID)
			if m.State != instance.Terminating {
				assert.Empty(t, api.Terminate(t.Context(), list))
			}
		}
		return len(list) == 0
	})
	awaitNothing(t, api)
}

func TestServerIsKilledAtEachStepOfADeletion(t *testing.T) {
	all := crash{Options: testOptions(t, deafGuest), Request: request(t), Terminate: true}.run(t)
	require.Equal(t, deletionSteps, all)
	for _, step := range all {
		t.Run(step, func(t *testing.T) {
			c := crash{Options: testOptions(t, deafGuest), Request: request(t), Terminate: true, Step: step}
			c.run(t)
			api := NewAPI(c.Options, testShard)
			if step == all[0] {
				// The deletion was not stored: its caller repeats the call.
				expectOneMachine(t, api, c.Request.ID)
				require.Empty(t, api.Terminate(t.Context(), []cloud.VM{{ID: c.Request.ID}}))
			}
			awaitNothing(t, api)
		})
	}
}

func TestSeveralServersLaunchOneMachine(t *testing.T) {
	options, r := testOptions(t, deafGuest), request(t)
	const servers = 4
	results := make(chan cloud.VM, servers)
	for range servers {
		go func() {
			m, err := NewAPI(options, testShard).Launch(t.Context(), r)
			assert.NoError(t, err)
			results <- m
		}()
	}
	for range servers {
		assert.Equal(t, r.ID, (<-results).ID)
	}
	expectOneMachine(t, NewAPI(options, testShard), r.ID)
}

// expectOneMachine expects that one instance has a machine, one QEMU, and nothing else
// exists.
func expectOneMachine(t *testing.T, api *API, id string) {
	t.Helper()
	list, err := api.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, id, list[0].ID)
	assert.Equal(t, instance.Running, list[0].State, list[0].Reason)
	assert.Equal(t, 1, running(t, api.options.Dir), "processes")
	assert.Len(t, entries(t, api), 1)
}

// awaitNothing lists until there is neither a process nor a folder.
func awaitNothing(t *testing.T, api *API) {
	t.Helper()
	await(t, "nothing is left", func() bool {
		list, err := api.List(t.Context())
		require.NoError(t, err)
		return len(list) == 0 && len(entries(t, api)) == 0
	})
	assert.Zero(t, running(t, api.options.Dir), "processes")
}

// entries returns the names in the folder of the shard.
func entries(t *testing.T, api *API) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(api.folders.path, "*"))
	require.NoError(t, err)
	return paths
}
