// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"fmt"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

const shardFlag = "shard"

func newShardResetGroupsCommand() *cobra.Command {
	var options storageOptions
	var shard string
	command := &cobra.Command{
		Use:   "reset-groups --storage-bucket BUCKET --shard SHARD",
		Short: "Confirm that the groups of a shard are lost",
		Long: "Confirm that the object with the dynamic groups of a shard is lost and that there is no backup: an empty one is " +
			"created, if there is none. The server of the shard then serves again. It terminates no instance of the lost " +
			"groups, and keeps them until an operator sends their groups, or until they are deleted.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			wrong.add(shardFlag, identifier.Validate(shard))
			if err := wrong.join(); err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			if err := groups.Reset(command.Context(), store, shard); err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Shard %s has no dynamic groups now. Its server serves within seconds.\n", shard)
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&shard, shardFlag, "", "id of the shard (required)")
	return command
}

func newShardAcceptLossesCommand() *cobra.Command {
	var options storageOptions
	var shard string
	command := &cobra.Command{
		Use:   "accept-losses GROUP --storage-bucket BUCKET --shard SHARD",
		Short: "Confirm that the missing instances of a group are lost",
		Long: "Confirm that the instances of a group that the provider does not list are lost. A shard leaves them alone if they " +
			"are many, because the list may be wrong. It replaces those that are missing now within seconds.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			var wrong mistakes
			options.validate(&wrong)
			wrong.add(shardFlag, identifier.Validate(shard))
			key := instance.GroupKey{Tenant: options.tenant, Group: args[0]}
			wrong.add("group", groups.ValidateKey(key))
			if err := wrong.join(); err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			if err := instance.AcceptLosses(command.Context(), store, shard, key); err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "The missing instances of group %s in shard %s are replaced within seconds.\n", key, shard)
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&shard, shardFlag, "", "id of the shard (required)")
	options.addTenantFlag(command.Flags())
	return command
}
