// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// SignalContext returns the context of the program: it is done when the user interrupts the
// program, stops it or closes the terminal. A closed pipe does not end the program, because
// a command may have to remove what it has created.
func SignalContext() (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}
