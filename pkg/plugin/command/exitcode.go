// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import "errors"

// Exit codes of the plugin.
const (
	exitOK    = 0
	exitError = 1
	// exitIncomplete: the output is complete but for what it names as unknown.
	exitIncomplete = 2
)

// errIncomplete is the error of a command that could not read everything. The output says
// what is unknown.
var errIncomplete = errors.New("something is unknown")

// ExitCode returns the exit code for the error of a command.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errIncomplete):
		return exitIncomplete
	}
	return exitError
}

// Message returns what to print for the error of a command, empty for nothing.
func Message(err error) string {
	if err == nil || errors.Is(err, errIncomplete) {
		return ""
	}
	return err.Error()
}
