// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command kubectl-nstance is a plugin of kubectl: it shows pools, their shards, instances and
// Nodes, and why something happens to them. It replaces instances if the user wants that, and otherwise only
// reads.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"nstance.dev/operator/pkg/base/terminal"
	"nstance.dev/operator/pkg/plugin/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	err := command.New(streams).ExecuteContext(ctx)
	stop()
	if message := command.Message(err); message != "" {
		fmt.Fprintln(terminal.NewWriter(os.Stderr), "error:", message)
	}
	os.Exit(command.ExitCode(err))
}
