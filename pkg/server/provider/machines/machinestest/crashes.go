// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinestest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/machines"
)

const (
	// crashEnv has the crash of a process that a test binary is started as.
	crashEnv = "NSTANCE_TEST_CRASH"
	// crashTimeout is how long a process may take to reach the step where it is killed. Some
	// have nothing to terminate and never reach theirs.
	crashTimeout = 5 * time.Second
	// launchTimeout is the same for one that certainly reaches its step.
	launchTimeout = 30 * time.Second
	// settleTimeout is how long the last process may take.
	settleTimeout = 3 * time.Minute
)

// unrecorded are the steps between the creation of a machine and its record. The provider makes
// the first, and the reconciler the second.
var unrecorded = []string{"return the machine", recordStep}

// maxCrashSize is more than any process has before those that are killed at these steps.
const maxCrashSize = 20

// Crashes are those of processes that reconcile with a provider whose options are O. The
// cloud is a server, which all processes use.
type Crashes[O any] struct {
	// Steps are those of a launch and of a termination.
	Steps []string
	// Size is how many instances the process of a number shall have. Its step is that of
	// the same number, modulo all steps.
	Size func(n int) int
	// Spec has what the requests of all instances have in common.
	Spec provider.Spec
	// New returns the provider of a process, which calls step before each step.
	New func(options *O, step func(string)) (provider.Provider, error)
}

// CrashedCloud is what Crashes.Test checks.
type CrashedCloud struct {
	// Made returns the instance ids of all machines that were ever created.
	Made func() []string
	// Settled reports whether exactly the machines of these instances exist, and nothing
	// of others.
	Settled func(ids []string) bool
	// Existing describes what exists, for messages.
	Existing func() string
}

// crash is a process that reconciles until it is killed.
type crash[O any] struct {
	Options *O
	Records records
	// Size is how many instances there shall be.
	Size int
	// Step is the step before which the process is killed.
	Step string
}

// ShortLimits returns limits with which a process of Crashes reaches its step in time.
func ShortLimits(l machines.Limits) machines.Limits {
	l.VisibilityDelay, l.PollInterval, l.IdleInterval = 200*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond
	l.Reads.PerSecond, l.Writes.PerSecond = 1000, 1000
	return l
}

// Main runs the tests of a package and returns the exit code. In a process that Test has
// started, it reconciles until the process is killed.
func (c *Crashes[O]) Main(m *testing.M) int {
	text := os.Getenv(crashEnv)
	if text == "" {
		return m.Run()
	}
	err := c.runUntilKilled([]byte(text))
	fmt.Fprintln(os.Stderr, "the process was not killed:", err)
	return 2
}

func (c *Crashes[O]) runUntilKilled(text []byte) error {
	var one crash[O]
	if err := json.Unmarshal(text, &one); err != nil {
		return err
	}
	r, err := c.reconciler(&one, func(step string) {
		if step == one.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		return err
	}
	return r.run(context.Background(), func() bool { return false })
}

func (c *Crashes[O]) reconciler(one *crash[O], step func(string)) (*reconciler, error) {
	p, err := c.New(one.Options, step)
	if err != nil {
		return nil, err
	}
	return &reconciler{records: one.Records, provider: p, size: one.Size, spec: c.Spec, step: step}, nil
}

// run starts a process for the crash, and kills it if it does not reach the step.
func (one *crash[O]) run(t *testing.T, timeout time.Duration) (reached bool) {
	t.Helper()
	text, err := json.Marshal(one)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	cmd.Stderr = &stderr
	_ = cmd.Run() // it is killed
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "step %q: %s", one.Step, stderr.String())
	return ctx.Err() == nil
}

// Test kills 50 processes at the steps of launches and terminations, and 50 others when a
// machine was created and is not recorded: each instance has had at most one machine, none was
// missing, and nothing is left that is not wanted.
func (c *Crashes[O]) Test(t *testing.T, options *O, cloud CrashedCloud) {
	kills := 50
	if testing.Short() {
		kills = 2 * len(c.Steps)
	}
	one := &crash[O]{Options: options, Records: records(t.TempDir())}
	at := map[string]int{}
	for n := range kills {
		one.Step, one.Size = c.Steps[n%len(c.Steps)], c.Size(n)
		if one.run(t, crashTimeout) {
			at[one.Step]++
		}
	}
	for _, step := range c.Steps {
		assert.Positive(t, at[step], "kills at the step %q", step)
	}
	one.Size = maxCrashSize
	for n := range kills {
		one.Step = unrecorded[n%len(unrecorded)]
		one.Size++
		if one.run(t, launchTimeout) {
			at[one.Step]++
		}
	}
	for _, step := range unrecorded {
		assert.GreaterOrEqual(t, at[step], kills/len(unrecorded)*9/10, "kills at the step %q", step)
	}

	one.Size = 3
	r, err := c.reconciler(one, func(string) {})
	require.NoError(t, err)
	settled := func() bool {
		ids, settled := r.settled()
		return settled && cloud.Settled(ids)
	}
	deadline := time.Now().Add(settleTimeout)
	require.NoError(t, r.run(t.Context(), func() bool { return time.Now().After(deadline) || settled() }))
	require.True(t, settled(), "exists: %s", cloud.Existing())
	made := map[string]int{}
	for _, id := range cloud.Made() {
		made[id]++
		assert.Equal(t, 1, made[id], "machines of instance %s", id)
		assert.Contains(t, one.Records.noted(everPrefix), id)
	}
	assert.Empty(t, one.Records.noted(missingPrefix), "instances that seemed to be missing")
	t.Logf("%d instances, %d machines, kills %v", len(one.Records.noted(everPrefix)), len(made), at)
}
