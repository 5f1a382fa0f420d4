// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// crashEnv is the environment variable with the crash of a process that Test has started.
	crashEnv = "NSTANCE_TEST_CRASH"
	// crashSize is the number of instances when everything has settled.
	crashSize = 3
	// maxCrashSize is larger than the Size of all processes, except processes that are killed
	// between the creation of a VM and its record.
	maxCrashSize = 20
)

// unrecorded are the steps between the creation of a machine and its record. The provider
// makes the first, and the reconciler the second.
var unrecorded = []string{"return the machine", recordStep}

// Crashes configures a test that kills processes of a provider with options O. All processes
// use one cloud, which is a server.
type Crashes[O any] struct {
	// Steps are the steps of a launch and of a termination.
	Steps []string
	// Size is the number of instances that process n shall have. Process n is killed at step n,
	// modulo the number of steps.
	Size func(n int) int
	// Spec has the fields that all requests have in common.
	Spec provider.Spec
	// New returns the provider of a process, which calls step before each step.
	New func(options *O, step func(string)) (provider.Provider, error)
}

// CrashedCloud is the interface through which Crashes.Test checks the cloud.
type CrashedCloud struct {
	// Made returns the instance ids of all machines that were ever created.
	Made func() []string
	// Settled reports whether exactly the VMs of these instances exist, with no other resources.
	Settled func(ids []string) bool
	// Existing describes all existing resources, for error messages.
	Existing func() string
}

// crash configures a process that reconciles until it is killed, or has nothing to do. Some
// processes have nothing to terminate, and never reach their step.
type crash[O any] struct {
	Options *O
	Records records
	// Size is the wanted number of instances.
	Size int
	// Step is the step before which the process is killed.
	Step string
}

// ShortLimits returns limits with which a process of Crashes reaches its step in time.
func ShortLimits(l cloud.Limits) cloud.Limits {
	l.VisibilityDelay, l.PollInterval, l.IdleInterval = 200*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond
	l.Reads.PerSecond, l.Writes.PerSecond = 1000, 1000
	return l
}

// Main runs the tests of a package and returns the exit code. In a process that Test has
// started, it reconciles until the process is killed or has nothing to do.
func (c *Crashes[O]) Main(m *testing.M) int {
	text := os.Getenv(crashEnv)
	if text == "" {
		return m.Run()
	}
	if err := c.runUntilKilled([]byte(text)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func (c *Crashes[O]) runUntilKilled(text []byte) error {
	var process crash[O]
	if err := json.Unmarshal(text, &process); err != nil {
		return err
	}
	r, err := c.reconciler(&process, func(step string) {
		if step == process.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		return err
	}
	return r.run(context.Background(), func() bool {
		_, settled := r.settled()
		return settled || r.rejected
	})
}

func (c *Crashes[O]) reconciler(process *crash[O], step func(string)) (*reconciler, error) {
	p, err := c.New(process.Options, step)
	if err != nil {
		return nil, err
	}
	return &reconciler{records: process.Records, provider: p, size: process.Size, spec: c.Spec, step: step}, nil
}

// Test kills processes at the steps of launches and terminations, and between the creation of
// a VM and its record: two for each step, or 50 of both kinds at full size. Each instance
// must have at most one VM, no instance may be missing, and nothing unwanted may be left.
//
// The test does not depend on the speed of the computer. A process ends when it reaches its
// step or has nothing to do, and only the deadline of the whole test limits its time. The
// assertions concern the instances at the end, which a slow computer only delays. There is no
// assertion about the number of processes that reach their step, because a call that takes
// too long can make a process miss it. Another process follows then.
func (c *Crashes[O]) Test(t *testing.T, options *O, cloud CrashedCloud) {
	test := &crashTest[O]{
		T: t, Crashes: c, cloud: cloud, at: map[string]int{},
		process: crash[O]{Options: options, Records: records(t.TempDir())},
	}
	kills := tier.Pick(2*len(c.Steps), 50)
	for n := range kills {
		test.kill(c.Steps[n%len(c.Steps)], c.Size(n))
	}
	for _, step := range c.Steps {
		// A process may have had nothing to terminate.
		for test.at[step] == 0 {
			test.replaceOne(step)
		}
	}
	size := maxCrashSize
	for n := range kills {
		// The process launches a VM for another instance and records it. If the response of a call
		// is lost, a list shows the VM.
		for reached := false; !reached; {
			size++
			reached = test.kill(unrecorded[n%len(unrecorded)], size)
		}
	}

	// With a second VM the cloud would never settle.
	test.check()
	test.settle()
	test.check()
	t.Logf("%d instances, %d machines, kills %v", len(test.process.Records.noted(everPrefix)), len(cloud.Made()), test.at)
}

// crashTest is a test in progress.
type crashTest[O any] struct {
	*testing.T
	*Crashes[O]
	cloud CrashedCloud
	// process is the last process that was killed.
	process crash[O]
	// at is how many processes were killed at each step.
	at map[string]int
}

// context returns a context that ends shortly before the test fails for taking too long.
func (c *crashTest[O]) context() (context.Context, context.CancelFunc) {
	if deadline, has := c.Deadline(); has {
		return context.WithDeadline(c.Context(), deadline.Add(-10*time.Second))
	}
	return context.WithCancel(c.Context())
}

// kill starts a process that is killed at a step, unless it never reaches it.
func (c *crashTest[O]) kill(step string, size int) (reached bool) {
	c.Helper()
	c.process.Step, c.process.Size = step, size
	text, err := json.Marshal(c.process)
	require.NoError(c, err)
	ctx, cancel := c.context()
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	cmd.Stderr = &stderr
	err = cmd.Run()
	require.NoError(c, ctx.Err(), "the process has neither reached the step %q nor settled; exists: %s\n%s", step, c.cloud.Existing(), &stderr)
	if err == nil {
		return false
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(c, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "step %q: %v\n%s", step, err, &stderr)
	c.at[step]++
	return true
}

// replaceOne lets everything settle, and kills a process that then terminates a running VM
// and launches a VM for another instance.
func (c *crashTest[O]) replaceOne(step string) {
	c.Helper()
	c.settle()
	all, err := c.process.Records.read()
	require.NoError(c, err)
	id := c.wanted()[0]
	replaced := all[id]
	replaced.Deleted = true
	require.NoError(c, c.process.Records.write(id, replaced))
	c.kill(step, crashSize)
}

// settle reconciles in this process until everything has settled.
func (c *crashTest[O]) settle() {
	c.Helper()
	c.process.Size = crashSize
	ctx, cancel := c.context()
	defer cancel()
	for settled := false; !settled; {
		require.NoError(c, ctx.Err(), "exists: %s", c.cloud.Existing())
		r, err := c.reconciler(&c.process, func(string) {})
		require.NoError(c, err)
		require.NoError(c, r.run(ctx, func() bool {
			ids, all := r.settled()
			settled = all && c.cloud.Settled(ids)
			return settled || r.rejected || ctx.Err() != nil
		}))
	}
}

// check asserts the rules for instances until now.
func (c *crashTest[O]) check() {
	c.Helper()
	made, ever := map[string]bool{}, c.process.Records.noted(everPrefix)
	for _, id := range c.cloud.Made() {
		require.False(c, made[id], "instance %s has had two machines", id)
		require.Contains(c, ever, id)
		made[id] = true
	}
	require.Empty(c, c.process.Records.noted(missingPrefix), "instances that seemed to be missing")
}

// wanted returns the wanted instances.
func (c *crashTest[O]) wanted() []string {
	c.Helper()
	all, err := c.process.Records.read()
	require.NoError(c, err)
	maps.DeleteFunc(all, func(_ string, r record) bool { return r.Deleted })
	return slices.Sorted(maps.Keys(all))
}

// record is the part of an instance that a server stores, and that survives a restart.
type record struct {
	CreatedAt time.Time
	// ProviderID is set once the provider has reported it. If the provider does not know
	// the instance then, it is missing.
	ProviderID string
	Deleted    bool
}

// records is a folder with the records of all instances.
type records string

func (r records) path(id string) string { return filepath.Join(string(r), id+".json") }

// Prefixes of files that record that an instance existed, and that it was missing.
const (
	everPrefix    = "ever-"
	missingPrefix = "missing-"
)

// note creates a file that records a fact about an instance.
func (r records) note(prefix, id string) error {
	return os.WriteFile(filepath.Join(string(r), prefix+id), nil, 0o600)
}

// noted returns the instances that have a file with a prefix.
func (r records) noted(prefix string) []string {
	paths, _ := filepath.Glob(filepath.Join(string(r), prefix+"*")) // the pattern is valid
	var ids []string
	for _, path := range paths {
		ids = append(ids, strings.TrimPrefix(filepath.Base(path), prefix))
	}
	return ids
}

// write stores a record, and that there was an instance.
func (r records) write(id string, stored record) error {
	data, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	if err := r.note(everPrefix, id); err != nil {
		return err
	}
	temporary := r.path(id) + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, r.path(id))
}

func (r records) remove(id string) error { return os.Remove(r.path(id)) }

func (r records) read() (map[string]record, error) {
	paths, err := filepath.Glob(filepath.Join(string(r), "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]record{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var stored record
		if err := json.Unmarshal(data, &stored); err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = stored
	}
	return all, nil
}
