// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package providercheck implements nstance-admin provider check: it creates one instance
// with the provider of a configuration and removes it (docs/providers.md#check-a-provider).
package providercheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// Defaults of the timeouts. Proxmox VE may copy a large disk, and clouds may take minutes
// until they show that a VM was deleted.
const (
	defaultStepTimeout    = 10 * time.Minute
	defaultCleanupTimeout = 20 * time.Minute
)

// UsageError reports a mistake in the flags or the configuration. The provider was not
// called.
type UsageError struct{ err error }

func (e *UsageError) Error() string { return e.err.Error() }

// Unwrap returns the wrapped error.
func (e *UsageError) Unwrap() error { return e.err }

// options are the values of the flags.
type options struct {
	config, template, instanceType, market, subnet string
	balancers                                      []string
	storage, bucket, prefix                        string
	skipAssumptions                                bool
	stepTimeout, cleanupTimeout                    time.Duration
}

// NewCommand returns the command check, which knows the given providers.
func NewCommand(providers provider.Registry) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Create one instance with the provider of a configuration, and remove it",
		Long: "Create one instance of the smallest type with the provider of a shard's configuration, find it, and " +
			"remove it. Run it where the server of the shard runs, with the same environment: it uses your account and costs " +
			"what one machine costs for some minutes.\n\n" +
			"The instance belongs to a cluster of the check alone, so the check never changes an instance of a shard. It " +
			"runs no agent and joins nothing. Whatever happens, the check removes what it has created; after kill -9, the " +
			"next check of the same shard does. Run one check of a shard at a time.\n\n" +
			"While the instance runs, the check asks the cloud about what the servers rely on, with up to three more instances, " +
			"and prints each answer beside what is relied on.\n\n" +
			"The exit code is 0 if all steps succeeded, 1 if one failed or an answer differs, and 2 if the flags or the " +
			"configuration are wrong.",
		Args: func(command *cobra.Command, args []string) error {
			if err := cobra.NoArgs(command, args); err != nil {
				return &UsageError{err}
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			check, err := o.check(providers)
			if err == nil {
				err = o.addExaminations(command.Context(), check)
			}
			if err != nil {
				return &UsageError{err}
			}
			check.output = command.OutOrStdout()
			return check.run(command.Context())
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err} })
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "", "path of the configuration of a shard (required)")
	flags.StringVar(&o.template, "template", "", "template of the instance (default: the only one)")
	flags.StringVar(&o.instanceType, "instance-type", "", "type of the instance (default: the smallest one of the template's architecture)")
	flags.StringVar(&o.market, "market", "", "market of the instance, such as "+provider.MarketSpot+" (default: what the arguments of the template select)")
	flags.StringVar(&o.subnet, "subnet", "", "subnet of the instance (default: the first one of the template's pool)")
	flags.StringSliceVar(&o.balancers, "load-balancers", nil, "load balancers of the configuration that the instance is registered with (default: none)")
	flags.BoolVar(&o.skipAssumptions, "skip-assumptions", false, "do not ask about what the servers rely on")
	flags.StringVar(&o.storage, "storage", backend.S3, "object storage of the servers: file, gcs or s3")
	flags.StringVar(&o.bucket, "storage-bucket", "", "name of the bucket whose service is asked (default: no questions about the storage)")
	flags.StringVar(&o.prefix, "storage-prefix", "", "prefix of all keys in the bucket")
	flags.DurationVar(&o.stepTimeout, "timeout", defaultStepTimeout, "longest time for one step")
	flags.DurationVar(&o.cleanupTimeout, "cleanup-timeout", defaultCleanupTimeout, "longest time for the removal after a failed step or an interruption")
	return command
}

// check returns the check that the flags describe. The error names all mistakes.
func (o *options) check(providers provider.Registry) (*check, error) {
	var mistakes []error
	if o.stepTimeout <= 0 {
		mistakes = append(mistakes, fmt.Errorf("--timeout: %s must be greater than zero", o.stepTimeout))
	}
	if o.cleanupTimeout <= 0 {
		mistakes = append(mistakes, fmt.Errorf("--cleanup-timeout: %s must be greater than zero", o.cleanupTimeout))
	}
	if o.config == "" {
		mistakes = append(mistakes, errors.New("--config: must be the path of the configuration of a shard"))
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	source, err := config.ReadFile(o.config)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	parsed, err := source.Parse(providers)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	target, err := o.target(parsed)
	if err != nil {
		return nil, err
	}
	return &check{target: target, stepTimeout: o.stepTimeout, cleanupTimeout: o.cleanupTimeout, skipAssumptions: o.skipAssumptions}, nil
}

// addExaminations adds the questions about the storage, the secrets and the provider to a check. A
// check that asks none removes what earlier questions have left.
func (o *options) addExaminations(ctx context.Context, c *check) error {
	if o.bucket != "" {
		store, err := backend.Open(ctx, o.storage, o.bucket, o.prefix)
		if err != nil {
			// The outer error names the flag of the server, --bucket.
			return fmt.Errorf("--storage-bucket: %w", cmp.Or(errors.Unwrap(err), err))
		}
		c.storageName = o.storage
		c.examinations = append(c.examinations, newStorageExamination(o.storage, store, c.shard.ClusterID+"/"+c.shard.ID+"/"))
	}
	if c.config.Secrets.Provider == config.SecretsInGoogle {
		c.examinations = append(c.examinations, newSecretExamination(func() (secrets.Store, error) { return openSecrets(ctx, c.config) }))
	}
	if examiner, ok := c.config.Shard.Infra.Options.(provider.Examiner); ok {
		examination, err := examiner.Examine(c.shard)
		if err != nil {
			return err
		}
		if len(examination.Assumptions) > 0 {
			c.examinations = append(c.examinations, examination)
		}
	}
	return nil
}
