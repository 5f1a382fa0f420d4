// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package command has the commands of the plugin of kubectl (docs/kubectl-plugin.md).
package command

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"nstance.dev/operator/pkg/base/programversion"
	"nstance.dev/operator/pkg/base/terminal"
	"nstance.dev/operator/pkg/plugin/status"
	"nstance.dev/operator/pkg/plugin/why"
)

// New returns the command kubectl-nstance. Texts of shards, machines and users in its output do
// not control the terminal.
func New(streams genericiooptions.IOStreams) *cobra.Command {
	streams.Out, streams.ErrOut = terminal.NewWriter(streams.Out), terminal.NewWriter(streams.ErrOut)
	o := &options{streams: streams, config: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:   "kubectl-nstance",
		Short: "Show pools of Nstance, their shards, instances and Nodes, and why something happens to them",
		Long: `Show pools of Nstance, their shards, instances and Nodes, and why something happens to them.

The commands read, with the rights of the user, and only rotate and replace change something. What
the user may not read is printed as unknown.

Exit codes: 0 if everything was read, 2 if something is unknown, 1 for any other error.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nstance"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.Version = programversion.Text("kubectl-nstance")
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	o.addFlags(root.PersistentFlags())
	if err := root.RegisterFlagCompletionFunc("output", completeOutput); err != nil {
		panic(err) // The flag does not exist.
	}
	root.AddCommand(newStatus(o), newWhy(o), newDrainStatus(o), newPlan(o), newRotate(o), newReplace(o), newDashboard(o), newVersion())
	return root
}

func newStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show the tree of pools, shards, instances and Nodes, and what is not as it should be",
		Example: `  # All pools of the namespace
  kubectl nstance status

  # One pool, as YAML
  kubectl nstance status workers -o yaml`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completeFirst(poolNames),
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
				_, _ = fmt.Fprintln(o.streams.ErrOut, noPools(snapshot.Namespace))
			}
			return o.print(result, result.Unknown, func(w io.Writer) error {
				return status.Print(w, result, o.printing(snapshot.Now))
			})
		},
	}
}

// noPools says where no pool was found.
func noPools(namespace string) string {
	if namespace == "" {
		return "No pools found."
	}
	return fmt.Sprintf("No pools found in namespace %q. -A reads all namespaces.", namespace)
}

// first returns the first argument, empty if there are no arguments.
func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func newWhy(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "why NODE",
		Short: "Explain why an instance is being created, drained, deleted or kept, and by whom",
		Long: `Explain why an instance is being created, drained, deleted or kept, and by whom.

NODE is the name of a Node, the name or the instance id of an NstanceMachine, or the provider id
of an instance or its last part.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: o.completeFirst(nodeNames),
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

func newDrainStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:               "drain-status [NODE]",
		Short:             "Show the drains in progress and what blocks them",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completeFirst(nodeNames),
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
			result := status.BuildDrains(snapshot)
			return o.print(result, result.Unknown, func(w io.Writer) error {
				return status.PrintDrains(w, result, o.printing(snapshot.Now))
			})
		},
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(command.OutOrStdout(), command.Root().Version)
			return err
		},
	}
}

// Exit codes of the plugin.
const (
	exitOK    = 0
	exitError = 1
	// exitIncomplete: the output is complete except for the objects that it lists as unknown.
	exitIncomplete = 2
	// exitBlocked: something blocks what the command plan shows, or the rotation that rotate waits for.
	exitBlocked = 3
)

// errIncomplete is the error of a command that could not read everything. The output lists the
// unknown objects.
var errIncomplete = errors.New("something is unknown")

// ExitCode returns the exit code for the error of a command.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errIncomplete):
		return exitIncomplete
	case errors.Is(err, errBlocked):
		return exitBlocked
	}
	return exitError
}

// Message returns the text to print for the error of a command, empty if the output has it.
func Message(err error) string {
	if err == nil || errors.Is(err, errIncomplete) || errors.Is(err, errBlocked) {
		return ""
	}
	return err.Error()
}
