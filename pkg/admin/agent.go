// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

// instanceFlag selects an instance.
const instanceFlag = "instance"

// agentOptions are the flags that select the agent of an instance.
type agentOptions struct {
	shard    string
	instance string
	// id is the parsed instance.
	id puidv7.ID
}

func (o *agentOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.shard, shardFlag, "", "id of the shard (required)")
	flags.StringVar(&o.instance, instanceFlag, "", "id of the instance (required)")
}

// validate adds the mistakes in the flags, and sets id.
func (o *agentOptions) validate(wrong *mistakes) {
	wrong.add(shardFlag, identifier.Validate(o.shard))
	var err error
	o.id, err = puidv7.Parse(o.instance)
	wrong.add(instanceFlag, err)
}

// record returns the record of the instance.
func (o *agentOptions) record(ctx context.Context, store storage.Store, tenant string) (*instance.Record, error) {
	object, err := store.Get(ctx, storage.InstanceKey(o.shard, tenant, o.id.StorageKey()))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, fmt.Errorf("--%s: shard %s has no instance %s of tenant %s", instanceFlag, o.shard, o.instance, tenant)
	}
	var record instance.Record
	if err == nil {
		err = json.Unmarshal(object.Data, &record)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of instance %s: %w", o.instance, err)
	}
	return &record, nil
}

// nonceLifetime is how long the nonce of an agent is valid that an administrator makes.
const nonceLifetime = time.Hour

// agentNonceOptions has the flags of agent nonce.
type agentNonceOptions struct {
	cluster nonceOptions
	agent   agentOptions
	output  string
}

func newAgentNonceCommand() *cobra.Command {
	var options agentNonceOptions
	command := &cobra.Command{
		Use:   "nonce --storage-bucket BUCKET --shard SHARD --instance ID",
		Short: "Make a nonce with which the agent of an instance can register again",
		Long: "Make a nonce with which the agent of an instance can register again, with the key that it has. " +
			"The agent uses the file nonce.jwt in its folder for the identity within seconds. The nonce is valid for " + nonceLifetime.String() + ".",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			token, err := options.nonce(command.Context())
			if err != nil {
				return err
			}
			return write(command.OutOrStdout(), options.output, []byte(token))
		},
	}
	options.cluster.addFlags(command.Flags())
	options.agent.addFlags(command.Flags())
	addOutputFlag(command.Flags(), &options.output)
	return command
}

func (o *agentNonceOptions) validate() error {
	var wrong mistakes
	o.cluster.validate(&wrong)
	o.agent.validate(&wrong)
	validateOutput(&wrong, o.output)
	return wrong.join()
}

// nonce returns a nonce that the audit log has.
func (o *agentNonceOptions) nonce(ctx context.Context) (string, error) {
	signer, err := o.cluster.signer(ctx)
	if err != nil {
		return "", err
	}
	store, err := o.cluster.open(ctx)
	if err != nil {
		return "", err
	}
	record, err := o.agent.record(ctx, store, o.cluster.tenant)
	if err != nil {
		return "", err
	}
	if !record.DeletionRequestedAt.IsZero() {
		return "", fmt.Errorf("--%s: instance %s is being deleted", instanceFlag, record.ID)
	}
	token, err := signer.Agent(registration.AgentNonce{
		InstanceID: record.ID, ClusterID: o.cluster.clusterID, Tenant: record.Tenant, Shard: o.agent.shard,
		Group: record.Group, OnDemand: record.OnDemand, RegistrationTimeout: nonceLifetime,
	})
	if err != nil {
		return "", err
	}
	err = o.cluster.audit(ctx, auditlog.Entry{
		Action: audit.IssueNonce, Tenant: record.Tenant, Instance: record.ID, ExpiresAt: time.Now().Add(nonceLifetime).UTC(), Reason: o.cluster.reason(),
	})
	return token, err
}

// revokeAgentOptions has the flags of agent revoke.
type revokeAgentOptions struct {
	storageOptions
	agentOptions
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
	options.storageOptions.addFlags(command.Flags())
	options.addTenantFlag(command.Flags())
	options.agentOptions.addFlags(command.Flags())
	command.Flags().BoolVar(&options.all, allFlag, false, "revoke all certificates that exist")
	command.Flags().StringVar(&options.serial, serialFlag, "", "revoke the certificate with this serial number, hexadecimal")
	return command
}

func (o *revokeAgentOptions) validate() error {
	var wrong mistakes
	o.storageOptions.validate(&wrong)
	o.validateTenant(&wrong)
	o.agentOptions.validate(&wrong)
	if (o.serial == "") != o.all {
		wrong.addf(allFlag, "must be set, or --%s, but not both", serialFlag)
	} else if o.serial != "" {
		var err error
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
	if _, err := o.record(ctx, store, o.tenant); err != nil {
		return err
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
