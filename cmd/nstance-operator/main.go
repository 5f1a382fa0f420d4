// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command nstance-operator is a Cluster API infrastructure provider that creates
// instances through Nstance shard servers.
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

	_ "k8s.io/component-base/logs/json/register"

	"nstance.dev/operator/pkg/base/programversion"
	"nstance.dev/operator/pkg/controller/daemon"
	"nstance.dev/operator/pkg/operator"
)

func main() {
	daemon.SetDefaultGOGC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nstance-operator:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	options := operator.DefaultOptions()
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:           "nstance-operator",
		Short:         "Cluster API infrastructure provider for Nstance",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logs.InitLogs()
			defer logs.FlushLogs()
			if err := operator.FromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			if err := options.Complete(); err != nil {
				return err
			}
			if err := options.Validate(); err != nil {
				return err
			}
			return operator.Run(cmd.Context(), options)
		},
	}
	cmd.Version = programversion.Text(cmd.Name())
	cmd.SetVersionTemplate("{{.Version}}\n")
	options.AddFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}
