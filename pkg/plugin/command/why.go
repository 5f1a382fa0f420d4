// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/plugin/why"
)

func newWhy(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "why NODE",
		Short: "Explain why an instance is being created, drained, deleted or kept, and by whom",
		Long: `Explain why an instance is being created, drained, deleted or kept, and by whom.

NODE is the name of a Node, or the name or the instance id of an NstanceMachine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			g, err := o.gatherer()
			if err != nil {
				return err
			}
			snapshot, err := g.Why(command.Context(), args[0])
			if err != nil {
				return err
			}
			snapshot.Now = time.Now()
			result := why.Explain(snapshot, args[0])
			return o.print(result, result.Unknown, func(w io.Writer) error {
				return why.Print(w, result, o.printing(snapshot.Now))
			})
		},
	}
}
