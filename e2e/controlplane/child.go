// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import "os/exec"

// child is a process that this program has started.
type child struct {
	id     processID
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has exited
}

// launch starts a process and waits for it, so that it leaves no zombie.
func launch(cmd *exec.Cmd) (*child, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, exited: make(chan struct{})}
	// Before it is waited for: a child that exits at once has an identity until then.
	id, _, err := identify(cmd.Process.Pid)
	go func() {
		_ = cmd.Wait() // the result is in cmd.ProcessState
		close(c.exited)
	}()
	if err != nil {
		c.kill()
		return nil, err
	}
	c.id = id
	return c, nil
}

// state returns the state of an exited process, such as "exit status 1" or
// "signal: killed".
func (c *child) state() string { return c.cmd.ProcessState.String() }

// kill kills the process and returns when it has exited.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // fails only when it has exited
	<-c.exited
}
