// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command devcluster runs a whole Nstance on one machine: a real Kubernetes
// control plane with Cluster API, three shard servers whose instances are
// Nodes without machines, or containers with a kubelet, and the operator.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the next signal kills the program at once. The kernel then kills its
	// children.
	context.AfterFunc(ctx, stop)

	err := newCommand().ExecuteContext(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
}

type (
	// action is the function of a command in a dev cluster, runE the function that cobra calls.
	action func(ctx context.Context, d devcluster, args []string) error
	runE   = func(*cobra.Command, []string) error
)

func newCommand() *cobra.Command {
	var dir string
	root := &cobra.Command{
		Use:           "devcluster",
		Short:         "Run a whole Nstance on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&dir, "dir", "",
		"folder of all state (default: .dev in the root of the repository)")

	// in passes the folder to the commands as an absolute path.
	in := func(run action) runE {
		return func(cmd *cobra.Command, args []string) error {
			d, err := locate(dir)
			if err != nil {
				return err
			}
			d.out = cmd.OutOrStdout()
			return run(cmd.Context(), d, args)
		}
	}
	var machines bool
	up := &cobra.Command{
		Use:   "up",
		Short: "Start everything and stay in the foreground until Ctrl-C, which stops it again",
		Long: `Start everything and stay in the foreground until Ctrl-C, which stops it again.

Missing programs are built first. Every start begins with an empty cluster; the
state of the last one in the folder is removed, its logs included.`,
		Args: cobra.NoArgs,
		RunE: in(func(ctx context.Context, d devcluster, _ []string) error {
			d.machines = machines
			return d.up(ctx)
		}),
	}
	up.Flags().BoolVar(&machines, "machines", false,
		"run each instance as a container with a kubelet; needs Docker and root")
	root.AddCommand(
		up,
		&cobra.Command{
			Use:   "down",
			Short: "Stop a running up, and the components that an earlier one left running",
			Args:  cobra.NoArgs,
			RunE:  in(func(ctx context.Context, d devcluster, _ []string) error { return d.down(ctx) }),
		},
		&cobra.Command{
			Use:   "status",
			Short: "Show the components",
			Args:  cobra.NoArgs,
			RunE:  in(func(ctx context.Context, d devcluster, _ []string) error { return d.status(ctx) }),
		},
		&cobra.Command{
			Use:   "kill COMPONENT",
			Short: "Kill a component with SIGKILL, like a crash",
			Args:  cobra.ExactArgs(1),
			RunE:  in(func(ctx context.Context, d devcluster, args []string) error { return d.kill(ctx, args[0]) }),
		},
		&cobra.Command{
			Use:   "start COMPONENT",
			Short: "Start a component again that has exited",
			Args:  cobra.ExactArgs(1),
			RunE:  in(func(ctx context.Context, d devcluster, args []string) error { return d.start(ctx, args[0]) }),
		},
		newMarekvsCommand(in),
	)
	return root
}
