// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/plugin/change"
)

func newReplace(o *options) *cobra.Command {
	var keep bool
	command := &cobra.Command{
		Use:   "replace NODE",
		Short: "Replace the instance of a Node at once, or take that back",
		Long: `Replace the instance of a Node at once, or take that back.

The Node gets the annotation nstance.dev/remediate-instance: its shard creates another instance, and
then drains and deletes this one, whatever spec.rotation of the pool says. A shard replaces a tenth
of its instances at a time, at least one. The output has the call of kubectl that does the same.

NODE is the name of a Node, the name or the instance id of an NstanceMachine, or the provider id of
an instance or its last part.`,
		Example: `  # The Node is broken
  kubectl nstance replace worker-7

  # It works again
  kubectl nstance replace worker-7 --keep`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: o.completeFirst(nodeNames),
		RunE: func(command *cobra.Command, args []string) error {
			return o.replace(command.Context(), args[0], keep)
		},
	}
	command.Flags().BoolVar(&keep, "keep", false, "remove the annotation: cancel a replacement that has not begun")
	return command
}

func (o *options) replace(ctx context.Context, name string, keep bool) error {
	g, err := o.gatherer()
	if err != nil {
		return err
	}
	snapshot, err := g.Why(ctx, name)
	if err != nil {
		return err
	}
	// An object that cannot be read is not missing: the instance may belong to a pool.
	for _, unknown := range []string{snapshot.Nodes.Unknown, snapshot.Pools.Unknown, snapshot.ShardGroups.Unknown} {
		if unknown != "" {
			return errors.New(unknown)
		}
	}
	newChange := change.Replace
	if keep {
		newChange = change.Keep
	}
	made, err := newChange(snapshot.Locate(name))
	if err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	if err := g.ChangeNode(ctx, made.Node, made.Patch()); err != nil {
		return err
	}
	return o.print(made, nil, func(w io.Writer) error { return change.Print(w, made) })
}
