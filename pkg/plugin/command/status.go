// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/plugin/status"
)

func newStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show the tree of pools, shards, instances and Nodes, and what is not as it should be",
		Example: `  # All pools of the namespace
  kubectl nstance status

  # One pool, as YAML
  kubectl nstance status workers -o yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			g, err := o.gatherer()
			if err != nil {
				return err
			}
			snapshot, err := g.Status(command.Context(), first(args))
			if err != nil {
				return err
			}
			snapshot.Now = time.Now()
			result := status.Build(snapshot)
			if o.table() && len(result.Pools) == 0 {
				_, _ = fmt.Fprintln(o.streams.ErrOut, "No pools found.")
			}
			return o.print(result, result.Unknown, func(w io.Writer) error {
				return status.Print(w, result, o.printing(snapshot.Now))
			})
		},
	}
}

// first returns the first argument, empty if there is none.
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
