// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import "os/exec"

// child is a process that this program has started.
type child struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
}

// launch starts a process and sees to it that it leaves no zombie.
func launch(cmd *exec.Cmd) (*child, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		close(c.ended)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// how tells how an ended process ended, such as "exit status 1" or
// "signal: killed".
func (c *child) how() string { return c.cmd.ProcessState.String() }

// kill ends the process and returns when it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // fails only when it has ended
	<-c.ended
}
