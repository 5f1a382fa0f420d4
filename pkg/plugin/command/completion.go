// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/plugin/objects"
)

// completionTimeout is how long the user waits after a tabulator at most.
const completionTimeout = 5 * time.Second

// completeOutput completes --output.
var completeOutput = cobra.FixedCompletions([]cobra.Completion{outputWide, outputJSON, outputYAML}, cobra.ShellCompDirectiveNoFileComp)

// completeFirst completes the first argument with names of objects. kubectl calls a completion
// through the program kubectl_complete-nstance (docs/kubectl-plugin.md#completion). What cannot be
// read is not completed, without a message: the user is in the middle of a line.
func (o *options) completeFirst(names func(*objects.Snapshot) []string) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		g, err := o.gatherer()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
		defer cancel()
		snapshot, err := g.Status(ctx, "")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		found := names(snapshot)
		slices.Sort(found)
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func poolNames(s *objects.Snapshot) []string {
	var names []string
	for i := range s.Pools.Items {
		names = append(names, s.Pools.Items[i].Name)
	}
	return names
}

func nodeNames(s *objects.Snapshot) []string {
	var names []string
	for i := range s.Nodes.Items {
		names = append(names, s.Nodes.Items[i].Name)
	}
	return names
}
