// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agentcloud is a cloud for tests whose machines are processes of nstance-agent. It
// is a server of its own, so that any number of shard servers, which may be killed, use the
// same machines.
package agentcloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
)

// Options configure a Cloud.
type Options struct {
	// Agent is the program nstance-agent.
	Agent string
	// Dir has a folder for each machine that was ever created. It is created.
	Dir string
	// Room is how many machines the subnets have room for. Others have no limit.
	Room map[string]int
	// Address is the address that the cloud reports for every machine, such as the address from
	// which the agents really connect. Without it each machine has another address, at which
	// nothing is.
	Address netip.Addr
	// Environment returns environment variables of the agents in a subnet. They replace the
	// variables that the userdata sets. Optional.
	Environment func(subnet string) []string
}

// Cloud has machines. Made and Terminated count them.
type Cloud struct {
	*cloudtest.Cloud
	// URL is where shard servers call the cloud.
	URL string

	options Options
	server  *http.Server

	// mu serializes starts and stops of machines, and guards the fields below: the running
	// machines by provider id, the most that have run at once, and the number of rejected
	// requests.
	mu             sync.Mutex
	machines       map[string]*machine
	most, rejected int
}

// Start serves the calls of shard servers at a free port of this machine until Close.
func Start(ctx context.Context, o Options) (*Cloud, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start the cloud: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the cloud: %w", err)
	}
	c := &Cloud{
		Cloud:    cloudtest.NewCloud(),
		URL:      "http://" + listener.Addr().String(),
		options:  o,
		machines: map[string]*machine{},
	}
	c.BootTime, c.StopTime, c.Room = 0, 0, o.Room
	if c.Room == nil {
		c.Room = map[string]int{}
	}
	c.server = &http.Server{Handler: c.handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = c.server.Serve(listener) }()
	return c, nil
}

// Close stops all machines.
func (c *Cloud) Close() error {
	err := c.server.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		m.stop()
	}
	clear(c.machines)
	return err
}

// Folder returns the folder of the machine of an instance: its userdata, the folders of the
// agent, and the log.
func (c *Cloud) Folder(id string) string { return filepath.Join(c.options.Dir, id) }

// Log returns the path of the log of the machine of an instance.
func (c *Cloud) Log(id string) string { return filepath.Join(c.Folder(id), logFile) }

// Vanish deletes the machines of instances without a request of a shard server.
func (c *Cloud) Vanish(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Cloud.Vanish(ids...)
	for providerID, m := range c.machines {
		if slices.Contains(ids, m.id) {
			m.stop()
			delete(c.machines, providerID)
		}
	}
}

// Subnet returns the instances whose machines run in a subnet, in order.
func (c *Cloud) Subnet(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for _, m := range c.machines {
		if m.subnet == name {
			ids = append(ids, m.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// api serves the calls for the machines of one shard.
type api struct {
	cloud.API
	cloud *Cloud
}

func (c *Cloud) api(shard provider.Shard) cloud.API { return api{c.API(shard), c} }

// Launch creates a machine and starts its agent, unless the request was made before.
func (a api) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	a.cloud.mu.Lock()
	defer a.cloud.mu.Unlock()
	m, err := a.API.Launch(ctx, r)
	if _, isRejection := errors.AsType[*cloud.Rejection](err); isRejection {
		a.cloud.rejected++
	}
	if err != nil || m.State == instance.Failed || a.cloud.machines[m.ProviderID] != nil {
		return m, err
	}
	started := &machine{id: r.ID, subnet: r.Subnet, folder: a.cloud.Folder(r.ID)}
	a.cloud.machines[m.ProviderID] = started
	a.cloud.most = max(a.cloud.most, len(a.cloud.machines))
	if err := started.boot(r.Userdata, a.cloud.options); err != nil {
		return m, fmt.Errorf("start the machine of instance %s: %w", r.ID, err)
	}
	return m, nil
}

// Terminate deletes machines.
func (a api) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	a.cloud.mu.Lock()
	defer a.cloud.mu.Unlock()
	errs := a.API.Terminate(ctx, list)
	for _, vm := range list {
		if m := a.cloud.machines[vm.ProviderID]; m != nil && errs[vm.ID] == nil {
			m.stop()
			delete(a.cloud.machines, vm.ProviderID)
		}
	}
	return errs
}

// Most returns how many machines there have been at once.
func (c *Cloud) Most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// Rejected returns how many requests for a machine were rejected.
func (c *Cloud) Rejected() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rejected
}

// Running returns the process ids of the agents that run.
func (c *Cloud) Running() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pids []int
	for m := range maps.Values(c.machines) {
		if m.agent != nil {
			pids = append(pids, m.agent.Process.Pid)
		}
	}
	return pids
}

// Files in the folder of a machine.
const (
	userdataFile = "userdata"
	// environmentFile is the file in which userdata leaves the environment of the agent. Without
	// it no agent starts.
	environmentFile = "agent.env"
	logFile         = "log"
)

// machine is a folder, in which userdata runs once as a script, and the process of an agent.
type machine struct {
	id, subnet, folder string
	// agent is nil if no agent was started.
	agent  *exec.Cmd
	exited chan struct{}
}

// boot runs the userdata and starts the agent.
func (m *machine) boot(userdata []byte, o Options) error {
	if err := os.Mkdir(m.folder, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.folder, userdataFile), userdata, 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(m.folder, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	script := m.command(log, "/bin/sh", userdataFile)
	if err := script.Run(); err != nil {
		// As on a real machine, only its log shows the failure.
		_, err = fmt.Fprintln(log, "userdata failed:", err)
		return err
	}
	environment, err := os.ReadFile(filepath.Join(m.folder, environmentFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	agent := m.command(log, o.Agent)
	agent.Env = append(agent.Env, strings.Split(strings.TrimSpace(string(environment)), "\n")...)
	if o.Environment != nil {
		agent.Env = append(agent.Env, o.Environment(m.subnet)...)
	}
	if err := agent.Start(); err != nil {
		return err
	}
	m.agent, m.exited = agent, make(chan struct{})
	go func() {
		defer close(m.exited)
		_ = agent.Wait()
	}()
	return nil
}

// command returns a command in the folder that does not outlive this process.
func (m *machine) command(log *os.File, name string, arguments ...string) *exec.Cmd {
	cmd := exec.Command(name, arguments...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.folder, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// stop turns the machine off.
func (m *machine) stop() {
	if m.agent == nil {
		return
	}
	_ = m.agent.Process.Kill() // fails only if it has exited
	<-m.exited
}
