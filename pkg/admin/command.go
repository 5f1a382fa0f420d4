// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package admin implements the command nstance-admin.
package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/admin/clusterinit"
	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/admin/operatorinstall"
	"nstance.dev/operator/pkg/admin/providercheck"
	"nstance.dev/operator/pkg/admin/shardinit"
	"nstance.dev/operator/pkg/base/programversion"
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
		newFamily("nonce-issuer", "Let others make nonces without the keys of the cluster",
			newNonceIssuerCreateCommand(),
			newNonceIssuerListCommand(),
			newNonceIssuerRevokeCommand(),
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
	root.SetGlobalNormalizationFunc(serverNames)
	root.Version = programversion.Text(root.Name())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SilenceUsage = true
	root.SilenceErrors = true
	return root
}

// serverNames lets the flags of the storage have the names that they have in nstance-server too.
func serverNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	switch name {
	case "bucket", "prefix":
		name = "storage-" + name
	}
	return pflag.NormalizedName(name)
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
	addFormatFlag(family.PersistentFlags())
	family.PersistentPreRunE = checkFormat
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
	if err := identityfolder.WriteFile(filepath.Clean(output), data); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// Values of --format.
const (
	formatFlag  = "format"
	formatTable = "table"
	formatJSON  = "json"
)

// addFormatFlag adds the flag of a command that prints a table. The command must run checkFormat
// before it does anything.
func addFormatFlag(flags *pflag.FlagSet) {
	flags.StringP(formatFlag, "o", formatTable, "format of the output: "+formatTable+" or "+formatJSON)
}

func checkFormat(command *cobra.Command, _ []string) error {
	format, err := command.Flags().GetString(formatFlag)
	if err == nil && format != formatTable && format != formatJSON {
		err = fmt.Errorf("--%s: %q is unknown, must be %s or %s", formatFlag, format, formatTable, formatJSON)
	}
	return err
}

// table is printed with aligned columns, or as JSON.
type table struct {
	columns []string
	rows    [][]string
}

func newTable(columns ...string) *table { return &table{columns: columns} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the table in the format that the flag of the command selects.
func (t *table) write(command *cobra.Command) error {
	format, err := command.Flags().GetString(formatFlag)
	if err != nil {
		return err
	}
	if format == formatJSON {
		return t.printJSON(command.OutOrStdout())
	}
	return t.print(command.OutOrStdout())
}

// print writes the table if it has rows.
func (t *table) print(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	columns := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{t.columns}, t.rows...) {
		lines := make([]string, len(row))
		for i, cell := range row {
			lines[i] = terminal.Line(cell)
		}
		if _, err := io.WriteString(columns, strings.Join(lines, "\t")+"\n"); err != nil {
			return err
		}
	}
	return columns.Flush()
}

// printJSON writes a list of objects whose members are named like the columns: kubernetesCluster
// for KUBERNETES CLUSTER. All values are text, and "-" of the table is empty.
func (t *table) printJSON(w io.Writer) error {
	list := make([]map[string]string, 0, len(t.rows))
	for _, row := range t.rows {
		object := make(map[string]string, len(row))
		for i, cell := range row {
			if cell == noValue {
				cell = ""
			}
			object[memberName(t.columns[i])] = cell
		}
		list = append(list, object)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(list)
}

// noValue is a cell without a value.
const noValue = "-"

// memberName returns the name of a column as a name of JSON.
func memberName(column string) string {
	words := strings.Fields(strings.ToLower(column))
	for i := 1; i < len(words); i++ {
		words[i] = strings.ToUpper(words[i][:1]) + words[i][1:]
	}
	return strings.Join(words, "")
}
