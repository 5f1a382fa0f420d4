// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/plugin/drains"
)

func newDrainStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "drain-status [NODE]",
		Short: "Show the drains in progress and what blocks them",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			g, err := o.gatherer()
			if err != nil {
				return err
			}
			snapshot, err := g.Drains(command.Context(), first(args))
			if err != nil {
				return err
			}
			snapshot.Now = time.Now()
			result := drains.Build(snapshot)
			return o.print(result, result.Unknown, func(w io.Writer) error {
				return drains.Print(w, result, o.printing(snapshot.Now))
			})
		},
	}
}
