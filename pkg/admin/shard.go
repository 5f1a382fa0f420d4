// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
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

// instanceFlag selects an instance.
const instanceFlag = "instance"

// revokeAgentOptions has the flags of agent revoke.
type revokeAgentOptions struct {
	storageOptions
	shard    string
	instance string
	// id is the parsed instance.
	id     puidv7.ID
	all    bool
	serial string
}

func newAgentRevokeCommand() *cobra.Command {
	var options revokeAgentOptions
	command := &cobra.Command{
		Use:   "revoke --storage-bucket BUCKET --shard SHARD --instance ID {--all | --serial SERIAL}",
		Short: "Revoke certificates of an instance's agent",
		Long: "Revoke certificates of an instance's agent. The server of the shard closes its connections within a minute, and renews no revoked certificate. " +
			"Its instance is then replaced like an instance whose agent is lost. With --all the nonces of the instance that exist cannot be used any more either.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			if err := options.revoke(command.Context()); err != nil {
				return err
			}
			what := "all certificates"
			if options.serial != "" {
				what = "certificate " + options.serial
			}
			_, err := fmt.Fprintf(command.OutOrStdout(), "Revoked %s of the agent of instance %s. The server closes its connections within a minute.\n", what, options.instance)
			return err
		},
	}
	options.addFlags(command.Flags())
	options.addTenantFlag(command.Flags())
	command.Flags().StringVar(&options.shard, shardFlag, "", "id of the shard (required)")
	command.Flags().StringVar(&options.instance, instanceFlag, "", "id of the instance (required)")
	command.Flags().BoolVar(&options.all, allFlag, false, "revoke all certificates that exist")
	command.Flags().StringVar(&options.serial, serialFlag, "", "revoke the certificate with this serial number, hexadecimal")
	return command
}

func (o *revokeAgentOptions) validate() error {
	var wrong mistakes
	o.storageOptions.validate(&wrong)
	o.validateTenant(&wrong)
	wrong.add(shardFlag, identifier.Validate(o.shard))
	var err error
	o.id, err = puidv7.Parse(o.instance)
	wrong.add(instanceFlag, err)
	if (o.serial == "") != o.all {
		wrong.addf(allFlag, "must be set, or --%s, but not both", serialFlag)
	} else if o.serial != "" {
		o.serial, err = registration.ParseSerial(o.serial)
		wrong.add(serialFlag, err)
	}
	return wrong.join()
}

func (o *revokeAgentOptions) revoke(ctx context.Context) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	_, err = store.Get(ctx, storage.InstanceKey(o.shard, o.tenant, o.id.StorageKey()))
	if errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("--%s: shard %s has no instance %s of tenant %s", instanceFlag, o.shard, o.instance, o.tenant)
	}
	if err != nil {
		return fmt.Errorf("read the record of instance %s: %w", o.instance, err)
	}
	if err := registration.RevokeAgent(ctx, store, o.shard, o.instance, o.serial); err != nil {
		return err
	}
	// A revocation is urgent: it does not depend on the audit log.
	entry := auditlog.Entry{Action: audit.RevokeCertificates, Name: o.serial, Tenant: o.tenant, Instance: o.instance, Reason: "command"}
	if err := o.audit(ctx, entry); err != nil {
		return fmt.Errorf("revoked %s, but: %w", cmp.Or(o.serial, "all certificates"), err)
	}
	return nil
}
