// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command nstance-server is the server of one shard: it keeps the groups of the
// shard at their size and answers to operators.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"nstance.dev/operator/pkg/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nstance-server:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var options server.Options
	logging := logsapi.NewLoggingConfiguration()
	command := &cobra.Command{
		Use:           "nstance-server --config FILE --data-dir DIR",
		Short:         "Keep the groups of one shard at their size",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			defer logs.FlushLogs()
			return server.Run(command.Context(), options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.ConfigPath, "config", "", "file with the configuration of the shard, JSON with comments; it is read again when it changes")
	flags.StringVar(&options.DataDir, "data-dir", "", "folder for what must survive a restart; it is made when missing")
	logsapi.AddFlags(logging, flags)
	for _, name := range []string{"config", "data-dir"} {
		// Fails only for a flag that does not exist.
		_ = command.MarkFlagRequired(name)
	}
	return command
}
