// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package admin implements the command nstance-admin.
package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/admin/clusterinit"
	"nstance.dev/operator/pkg/admin/operatorinstall"
	"nstance.dev/operator/pkg/admin/providercheck"
	"nstance.dev/operator/pkg/admin/shardinit"
	"nstance.dev/operator/pkg/base/terminal"
	"nstance.dev/operator/pkg/server/provider/registry"
)

// NewCommand returns the command nstance-admin. Flags whose description names an
// environment variable default to its value.
func NewCommand() *cobra.Command {
	root := newFamily("nstance-admin", "Administer Nstance shard servers",
		newFamily("agent", "Revoke the certificates of agents, and let them register again",
			newAgentNonceCommand(),
			newAgentRevokeCommand(),
		),
		newFamily("ca", "Replace the CA of the cluster",
			newCABeginCommand(),
			newCASwitchCommand(),
			newCAFinishCommand(),
			newCACancelCommand(),
			newCAStatusCommand(),
		),
		newFamily("cluster", "Create the keys of a cluster, and let operators into it",
			newCACommand(),
			clusterinit.NewCommand(&initAccess{}, registry.Providers),
			newNonceCommand(),
			newRegisterCommand(),
		),
		newShardFamily("config", "Look at the configuration of shards",
			newConfigStatusCommand,
			newConfigRefreshCommand,
		),
		newShardFamily("group", "Look at groups, scale and delete them",
			newGroupListCommand,
			newGroupScaleCommand,
			newGroupDeleteCommand,
		),
		newFamily("operator", "Install an operator, look at the certificates of operators and revoke them",
			operatorinstall.NewCommand(shardAddresses),
			newOperatorIssueCommand(),
			newOperatorListCommand(),
			newOperatorRevokeCommand(),
		),
		newFamily("provider", "Check the provider of a shard",
			providercheck.NewCommand(registry.Providers),
		),
		newFamily("secret", "Store the secrets that files of instances have",
			newSecretDeleteCommand(),
			newSecretListCommand(),
			newSecretReencryptCommand(),
			newSecretSetCommand(),
		),
		newFamily("shard", "Write the configuration of a shard, and decide about one whose storage was lost",
			shardinit.NewCommand(registry.Providers),
			newShardResetGroupsCommand(),
			newShardAcceptLossesCommand(),
		),
		newFamily("tenant", "Decide which Kubernetes cluster a tenant belongs to",
			newTenantAdoptCommand(),
		),
	)
	// Messages of servers must not control the terminal.
	root.SetOut(terminal.NewWriter(os.Stdout))
	root.SetErr(terminal.NewWriter(os.Stderr))
	root.Version = version.Print(root.Name())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SilenceUsage = true
	root.SilenceErrors = true
	return root
}

// ExitCode returns the exit code of the program for the error of a command.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[*providercheck.UsageError](err); ok {
		return 2
	}
	return 1
}

// newFamily returns a command that has only subcommands.
func newFamily(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	family := &cobra.Command{
		Use:   use,
		Short: short,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			known := make([]string, 0, len(subcommands))
			for _, subcommand := range subcommands {
				known = append(known, subcommand.Name())
			}
			return fmt.Errorf("unknown command %q of %q, known are %s", args[0], command.CommandPath(), strings.Join(known, ", "))
		},
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	family.AddCommand(subcommands...)
	return family
}

// newShardFamily returns a command whose subcommands call the servers of shards.
func newShardFamily(use, short string, newSubcommands ...func(*shardOptions) *cobra.Command) *cobra.Command {
	options := &shardOptions{}
	subcommands := make([]*cobra.Command, 0, len(newSubcommands))
	for _, newSubcommand := range newSubcommands {
		subcommands = append(subcommands, newSubcommand(options))
	}
	family := newFamily(use, short, subcommands...)
	options.addFlags(family.PersistentFlags())
	return family
}

// mistakes collects all errors in the flags of a command, so that users see them at once.
type mistakes []error

func (m *mistakes) add(flag string, err error) {
	if err != nil {
		*m = append(*m, fmt.Errorf("--%s: %w", flag, err))
	}
}

func (m *mistakes) addf(flag, format string, args ...any) {
	m.add(flag, fmt.Errorf(format, args...))
}

func (m mistakes) join() error {
	return errors.Join(m...)
}

// SignalContext returns a context that is canceled when the user interrupts or stops the
// program or closes the terminal. SIGPIPE does not end the program, because provider check
// has to remove the resources that it has created.
func SignalContext() (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGPIPE)
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}

// toStandardOutput is the value of --output that selects standard output.
const toStandardOutput = "-"

func addOutputFlag(flags *pflag.FlagSet, output *string) {
	flags.StringVar(output, "output", toStandardOutput, "file to write to, or - for the standard output")
}

func validateOutput(wrong *mistakes, output string) {
	if output == "" {
		wrong.addf("output", "must be a path, or %q for the standard output", toStandardOutput)
	}
}

// write prints data with a line break at the end. Into a file it writes data unchanged, so
// that a Secret can be created from the file.
func write(standardOutput io.Writer, output string, data []byte) error {
	if output == toStandardOutput {
		_, err := fmt.Fprintf(standardOutput, "%s\n", bytes.TrimSuffix(data, []byte("\n")))
		return err
	}
	if err := writeFile(filepath.Clean(output), data); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// table is printed with aligned columns.
type table struct {
	rows []string
}

func newTable(columns ...string) *table {
	t := &table{}
	t.add(columns...)
	return t
}

func (t *table) add(cells ...string) {
	lines := make([]string, len(cells))
	for i, cell := range cells {
		lines[i] = terminal.Line(cell)
	}
	t.rows = append(t.rows, strings.Join(lines, "\t")+"\n")
}

// print writes the table if it has rows besides the header.
func (t *table) print(w io.Writer) error {
	if len(t.rows) == 1 {
		return nil
	}
	columns := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range t.rows {
		if _, err := io.WriteString(columns, row); err != nil {
			return err
		}
	}
	return columns.Flush()
}
