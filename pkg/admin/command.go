// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package admin implements the command nstance-admin.
package admin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/admin/providercheck"
	"nstance.dev/operator/pkg/server/provider/registry"
)

// NewCommand returns the command. Flags whose description names an environment
// variable default to it.
func NewCommand() *cobra.Command {
	root := newFamily("nstance-admin", "Administer Nstance shard servers",
		newFamily("cluster", "Let operators into the cluster",
			newCACommand(),
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
		newFamily("operator", "Look at the certificates of operators and revoke them",
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
			newSecretSetCommand(),
		),
		newFamily("shard", "Decide about a shard whose storage was lost",
			newShardResetGroupsCommand(),
			newShardAcceptLossesCommand(),
		),
		newFamily("tenant", "Decide which Kubernetes cluster a tenant belongs to",
			newTenantAdoptCommand(),
		),
	)
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

// mistakes are all errors in a command's flags.
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
