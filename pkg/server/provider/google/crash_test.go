// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/machines"
	"nstance.dev/operator/pkg/server/puidv7"
)

// crashEnv has the crash of a process that this test binary is started as.
const crashEnv = "NSTANCE_TEST_GOOGLE_CRASH"

// crash is a process that reconciles until it is killed.
type crash struct {
	Options *Options
	// Records is the folder of the records.
	Records string
	// Size is how many instances there shall be.
	Size int
	// Step is the step before which the process is killed.
	Step string
}

// steps are those of a launch and of a termination.
var steps = []string{
	"request the machine", "wait for the operation", "read the machine", "return the machine",
	"delete the machine", "return",
}

func runUntilCrash(text []byte) error {
	var c crash
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	s, err := newServer(&c, func(step string) {
		if step == c.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		return err
	}
	return s.run(context.Background(), func() bool { return false })
}

// run starts a process for the crash, and kills it if it does not reach the step.
func (c *crash) run(t *testing.T) (reached bool) {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	cmd.Stderr = &stderr
	_ = cmd.Run() // it is killed
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "step %q: %s", c.Step, stderr.String())
	return ctx.Err() == nil
}

// record is what a server stores of an instance.
type record struct {
	CreatedAt  time.Time
	ProviderID string
	Deleted    bool
}

// server does with records in a folder what the reconciler does.
type server struct {
	*crash
	provider *machines.Provider
}

// newServer uses application default credentials.
func newServer(c *crash, step func(string)) (*server, error) {
	api, err := NewAPI(c.Options, testShard)
	if err != nil {
		return nil, err
	}
	api.step = step
	api.limits.VisibilityDelay, api.limits.PollInterval, api.limits.IdleInterval = 200*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond
	api.limits.Reads.PerSecond, api.limits.Writes.PerSecond = 1000, 1000
	return &server{crash: c, provider: machines.New(api, machines.Options{})}, nil
}

// run reconciles until done returns true.
func (s *server) run(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan error, 1)
	changes := make(chan struct{}, 1)
	go func() {
		stopped <- s.provider.Run(ctx, func(instance.GroupKey) {
			select {
			case changes <- struct{}{}:
			default:
			}
		}, func(instance.GroupKey, string, error) {})
	}()
	<-s.provider.Synced()
	records, err := s.read()
	if err != nil {
		return err
	}
	var expected []instance.VM
	for id, r := range records {
		expected = append(expected, instance.VM{ID: id, ProviderID: r.ProviderID, Group: workers})
	}
	s.provider.Expect(expected)
	for !done() {
		if err := s.reconcile(ctx); err != nil {
			return err
		}
		select {
		case <-changes:
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	return <-stopped
}

// reconcile does what is due for each instance.
func (s *server) reconcile(ctx context.Context) error {
	records, err := s.read()
	if err != nil {
		return err
	}
	for _, vm := range s.provider.List(workers) {
		r, recorded := records[vm.ID]
		switch {
		case !recorded:
			r = record{Deleted: true} // none is wanted that was forgotten
		case vm.State == instance.Failed || vm.State == instance.Stopped:
			r.Deleted = true
		}
		if vm.ProviderID != "" {
			r.ProviderID = vm.ProviderID
		}
		if r != records[vm.ID] {
			if err := s.write(vm.ID, r); err != nil {
				return err
			}
			records[vm.ID] = r
		}
	}
	var wanted []string
	for id, r := range records {
		vm, known := s.provider.Get(id)
		switch {
		case r.Deleted && known && vm.State != instance.Terminating:
			err = s.provider.Delete(ctx, id)
		case r.Deleted && !known:
			err = os.Remove(s.path(id))
		case !r.Deleted && !known && r.ProviderID != "":
			err = os.WriteFile(filepath.Join(s.Records, "missing-"+id), nil, 0o600)
		case !r.Deleted && !known:
			_ = s.provider.Create(ctx, s.spec(id, r)) // is tried again
		}
		if err != nil {
			return err
		}
		if !r.Deleted {
			wanted = append(wanted, id)
		}
	}
	return s.scale(wanted, records)
}

// scale records a new instance or the deletion of the newest one.
func (s *server) scale(wanted []string, records map[string]record) error {
	slices.Sort(wanted)
	switch {
	case len(wanted) < s.Size:
		id, err := puidv7.New("knd")
		if err != nil {
			return err
		}
		return s.write(id.String(), record{CreatedAt: time.Now()})
	case len(wanted) > s.Size:
		newest := wanted[len(wanted)-1]
		r := records[newest]
		r.Deleted = true
		return s.write(newest, r)
	}
	return nil
}

// spec has another nonce in the userdata each time.
func (s *server) spec(id string, r record) provider.Spec {
	return provider.Spec{
		ID: id, Group: workers, Kind: "knd", Type: testType, Subnet: "subnet", CreatedAt: r.CreatedAt,
		Userdata: []byte(fmt.Sprint("nonce ", time.Now())),
	}
}

func (s *server) path(id string) string { return filepath.Join(s.Records, id+".json") }

// write stores a record, and a file that shows that there was an instance.
func (s *server) write(id string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.Records, "ever-"+id), nil, 0o600); err != nil {
		return err
	}
	temporary := s.path(id) + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, s.path(id))
}

func (s *server) read() (map[string]record, error) {
	paths, err := filepath.Glob(filepath.Join(s.Records, "*.json"))
	if err != nil {
		return nil, err
	}
	records := map[string]record{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, err
		}
		records[strings.TrimSuffix(filepath.Base(path), ".json")] = r
	}
	return records, nil
}

// ids returns the instances that have a file with a prefix.
func (s *server) ids(prefix string) []string {
	paths, _ := filepath.Glob(filepath.Join(s.Records, prefix+"*")) // the pattern is valid
	var ids []string
	for _, path := range paths {
		ids = append(ids, strings.TrimPrefix(filepath.Base(path), prefix))
	}
	return ids
}

// newCrash returns a project whose operations are fast, and a crash there. The processes find
// application default credentials.
func newCrash(t *testing.T) (*gcetest.Server, *crash) {
	project := gcetest.New()
	project.OperationTime, project.BootTime, project.DeleteTime = 30*time.Millisecond, 20*time.Millisecond, 30*time.Millisecond
	project.Start(t)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", project.Credentials(t))
	return project, &crash{Options: testOptions(project), Records: t.TempDir()}
}

// TestTheServerIsKilled 50 times, at each step of launches and terminations: each instance
// has had at most one machine, none was missing, and nothing is left that is not wanted.
func TestTheServerIsKilled(t *testing.T) {
	project, c := newCrash(t)
	kills := 50
	if testing.Short() {
		kills = 2 * len(steps)
	}
	at := map[string]int{}
	for n := range kills {
		c.Step = steps[n%len(steps)]
		// More than before, so that there is something to launch, and then less.
		c.Size = 2 + n%len(steps)
		if left := len(steps) - 1 - n%len(steps); left <= len(steps)-1-slices.Index(steps, "delete the machine") {
			c.Size = left
		}
		if c.run(t) {
			at[c.Step]++
		}
	}
	for _, step := range steps {
		assert.Positive(t, at[step], "kills at the step %q", step)
	}

	c.Size = 3
	s, err := newServer(c, func(string) {})
	require.NoError(t, err)
	deadline := time.Now().Add(30 * time.Second)
	require.NoError(t, s.run(t.Context(), func() bool {
		return time.Now().After(deadline) || s.settled(project)
	}))
	require.True(t, s.settled(project), "virtual machines %v, disks %v", project.All(), project.Disks())
	made := map[string]int{}
	for _, name := range project.Made() {
		made[name]++
		assert.Equal(t, 1, made[name], "virtual machines of instance %s", name)
		assert.Contains(t, s.ids("ever-"), name)
	}
	assert.Empty(t, s.ids("missing-"), "instances that seemed to be missing")
	t.Logf("%d instances, %d virtual machines, kills %v", len(s.ids("ever-")), len(made), at)
}

// settled reports whether exactly the machines exist that are wanted, and all run.
func (s *server) settled(project *gcetest.Server) bool {
	records, err := s.read()
	if err != nil || len(records) != s.Size {
		return false
	}
	for id, r := range records {
		vm, _ := s.provider.Get(id)
		if r.Deleted || r.ProviderID == "" || vm.State != instance.Running {
			return false
		}
	}
	return len(project.All()) == s.Size && len(project.Disks()) == s.Size
}
