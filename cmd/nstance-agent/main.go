// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command nstance-agent runs on each machine of a group: it registers the instance at the
// server of its shard, reports its health, and receives keys and files.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent"
	"nstance.dev/operator/pkg/base/flagenv"
	"nstance.dev/operator/pkg/base/programversion"
)

// debugVerbosity is the verbosity of the log with --debug.
const debugVerbosity = "4"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nstance-agent:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	options := agent.DefaultOptions()
	logging := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logging)
	command := &cobra.Command{
		Use:   "nstance-agent",
		Short: "Register this machine at an Nstance server and report its health",
		Long: `Register this machine at an Nstance server and report its health.

Each flag can also be set by the environment variable of its name:
--instance-id by NSTANCE_INSTANCE_ID.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := flagenv.Set(command.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if err := options.Validate(); err != nil {
				return err
			}
			if options.Debug {
				if err := logging.Set("v", debugVerbosity); err != nil {
					return err
				}
			}
			return agent.Run(command.Context(), options)
		},
	}
	command.Version = programversion.Text(command.Name())
	command.SetVersionTemplate("{{.Version}}\n")
	options.AddFlags(command.Flags())
	return command
}
