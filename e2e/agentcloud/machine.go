// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentcloud

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Names of files in the folder of a machine.
const (
	userdataFile = "userdata"
	// environmentFile is what userdata writes for the agent. Without it no agent starts.
	environmentFile = "agent.env"
	logFile         = "log"
)

// machine is a folder, in which userdata runs once as a script, and the process of an agent.
type machine struct {
	id, subnet, folder string
	// agent is nil if none was started.
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
		// As on a real machine, only its log shows that.
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
