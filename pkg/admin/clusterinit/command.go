// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package clusterinit implements nstance-admin cluster init: it creates what the servers of a
// cluster share, before any of them has started (docs/install.md#cluster-init).
package clusterinit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

// Access is the storage of a cluster and its secrets, as the flags of nstance-admin name them.
type Access interface {
	AddFlags(flags *pflag.FlagSet)
	// Validate returns all mistakes in the flags.
	Validate() error
	// ClusterID is the value of --cluster-id.
	ClusterID() string
	// SecretsProvider is where the secrets are, as cluster.secrets.provider of a configuration.
	SecretsProvider() string
	// KeyFile is the path of the encryption key, empty if the key is not in a file.
	KeyFile() string
	// KeyPlace describes where the encryption key or the secrets are, for a message.
	KeyPlace() string
	// OpenStorage opens the storage. It creates the folder of a storage in a folder.
	OpenStorage(ctx context.Context) (storage.Store, error)
	// OpenSecrets opens the secrets with the encryption key.
	OpenSecrets(ctx context.Context) (secrets.Store, error)
	// Nonce returns a nonce for the operator of the tenant, and records it in the audit log.
	Nonce(ctx context.Context, loaded *clusterkeys.Keys, lifetime time.Duration) (string, error)
	// AuditSecret records in the audit log that a secret is stored.
	AuditSecret(ctx context.Context, name string) error
}

// options are the values of the flags that are not of Access.
type options struct {
	configs        []string
	identity       string
	nonceSecret    string
	nonceLifetime  time.Duration
	replaceConfigs bool
}

// NewCommand returns the command init, which knows the given providers.
func NewCommand(access Access, providers provider.Registry) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "init --storage-bucket BUCKET --cluster-id ID [--config FILE] [--identity-dir DIR]",
		Short: "Create the keys and the CA of a cluster once, before its first server",
		Long: "Create what the servers of a cluster share: the encryption key (with --key-provider file, if the file does not " +
			"exist), the CA, the key of nonces, and the configurations of shards in the storage. No server has to run.\n\n" +
			"Nothing that exists is changed: the command can be repeated, and prints what it has created, what existed " +
			"already, and what to keep. It checks first that the storage rejects writes that would replace another one.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := errors.Join(access.Validate(), o.validate(access)); err != nil {
				return err
			}
			i := initialization{options: &o, access: access, providers: providers, output: command.OutOrStdout()}
			return i.run(command.Context())
		},
	}
	flags := command.Flags()
	access.AddFlags(flags)
	flags.StringSliceVar(&o.configs, "config", nil, "file with the configuration of a shard, which is copied to the storage; may be repeated")
	flags.BoolVar(&o.replaceConfigs, "replace-config", false, "replace configurations in the storage that differ from --config")
	flags.StringVar(&o.identity, identityfolder.Flag, "", "folder for ca.crt and a nonce of the operator, nonce.jwt, for \"operator install\"")
	flags.StringVar(&o.nonceSecret, "nonce-secret", "", "name of a secret, such as operator-nonce.env, in which a nonce of the operator is stored for a file of instances: NONCE=…")
	flags.DurationVar(&o.nonceLifetime, "nonce-expiry", registration.DefaultNonceLifetime, "how long a nonce is valid, at most "+registration.MaxNonceLifetime.String())
	return command
}

func (o *options) validate(access Access) error {
	var mistakes []error
	add := func(flag string, err error) {
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if access.ClusterID() == "" {
		add("cluster-id", errors.New("must be the id of the cluster, which its CA has as its name"))
	} else {
		add("cluster-id", identifier.Validate(access.ClusterID()))
	}
	if o.nonceLifetime <= 0 || o.nonceLifetime > registration.MaxNonceLifetime {
		add("nonce-expiry", fmt.Errorf("%s must be greater than zero and at most %s", o.nonceLifetime, registration.MaxNonceLifetime))
	}
	switch {
	case o.nonceSecret == "":
	case storage.IsReservedSecret(o.nonceSecret):
		add("nonce-secret", fmt.Errorf("%q is a secret of the servers, choose another name", o.nonceSecret))
	case !strings.HasSuffix(o.nonceSecret, ".env"):
		add("nonce-secret", fmt.Errorf("%q must end with .env, because its content is NONCE=…", o.nonceSecret))
	}
	return errors.Join(mistakes...)
}
