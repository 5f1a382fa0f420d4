// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package command has the commands of the plugin of kubectl (docs/kubectl-plugin.md).
package command

import (
	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// New returns the command kubectl-nstance.
func New(streams genericiooptions.IOStreams) *cobra.Command {
	o := &options{streams: streams, config: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:   "kubectl-nstance",
		Short: "Show pools of Nstance, their shards, instances and Nodes, and why something happens to them",
		Long: `Show pools of Nstance, their shards, instances and Nodes, and why something happens to them.

The commands only read, with the rights of the user. What the user may not read is printed
as unknown.

Exit codes: 0 if everything was read, 2 if something is unknown, 1 for any other error.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nstance"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.Version = version.Print("kubectl-nstance")
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	o.addFlags(root.PersistentFlags())
	root.AddCommand(newStatus(o), newWhy(o), newDrainStatus(o), newDashboard(o))
	return root
}
