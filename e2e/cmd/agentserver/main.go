// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command agentserver is nstance-server with one more provider, for tests: agentcloud, whose
// machines are processes of nstance-agent.
package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"nstance.dev/operator/e2e/agentcloud"
	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/provider/registry"
	"nstance.dev/operator/pkg/server/storage/backend"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agentserver:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	s := &server.Server{Providers: maps.Clone(registry.Providers), Listen: listen}
	s.Providers[agentcloud.Name] = agentcloud.ReadOptions
	var bucket string
	logging := logsapi.NewLoggingConfiguration()
	command := &cobra.Command{
		Use:           "agentserver",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			defer logs.FlushLogs()
			if s.Storage, err = backend.Open(command.Context(), backend.File, bucket, ""); err != nil {
				return err
			}
			return s.Run(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringVar(&s.Shard, "shard", "", "as of nstance-server, like the flags below")
	flags.StringVar(&s.ID, "id", "", "")
	flags.StringVar(&s.Host, "host", "", "")
	flags.StringVar(&bucket, "bucket", "", "")
	flags.StringVar(&s.CacheDir, "cache-dir", "", "")
	logsapi.AddFlags(logging, flags)
	return command
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}
