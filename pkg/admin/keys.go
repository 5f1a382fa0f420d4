// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/backend"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	keyProviderEnv  = "env"
	keyProviderFile = "file"
	// keyProviderKMS is AWS KMS. --key is the value of aws_kms in the configuration.
	keyProviderKMS = "aws-kms"
	// defaultKey is the default environment variable of the encryption key.
	defaultKey = "NSTANCE_ENCRYPTION_KEY"
)

// keyProviders lists the values of --key-provider.
var keyProviders = []string{
	keyProviderEnv, keyProviderFile, config.SecretsInSecretsManager, config.SecretsInParameterStore, config.SecretsInGoogle, keyProviderKMS,
}

// secretOptions has the flags that select the secrets of a cluster, to list or delete them.
type secretOptions struct {
	storageOptions
	// provider, secretsPrefix, project and locations are fields of config.Secrets.
	provider, secretsPrefix, project string
	locations                        []string
	// newCluster is the id of a cluster whose authority may not exist yet, and otherwise empty.
	newCluster string
}

func (o *secretOptions) addFlags(flags *pflag.FlagSet) {
	o.storageOptions.addFlags(flags)
	flags.StringVar(&o.provider, "secrets-provider", config.SecretsInStorage, "where secrets are: "+strings.Join(config.SecretsProviders, ", "))
	flags.StringVar(&o.secretsPrefix, "secrets-prefix", "", "prefix of the names of secrets in a service (default: that of the servers, with the id of the cluster)")
	flags.StringVar(&o.project, "secrets-project", "", "project of Google Secret Manager")
	flags.StringSliceVar(&o.locations, "secrets-locations", nil, "locations of new secrets in Google Secret Manager (default: automatic replication)")
}

func (o *secretOptions) validate(wrong *mistakes) {
	o.storageOptions.validate(wrong)
	switch {
	case !slices.Contains(config.SecretsProviders, o.provider):
		wrong.addf("secrets-provider", "%q is unknown, known are %q", o.provider, config.SecretsProviders)
		return
	case o.secretsPrefix != "":
		if rule := config.ValidateSecretsPrefix(o.provider, o.secretsPrefix); rule != "" {
			wrong.addf("secrets-prefix", "%q %s", o.secretsPrefix, rule)
		}
	}
	switch isGoogle := o.provider == config.SecretsInGoogle; {
	case isGoogle && !config.ValidateSecretsProject(o.project):
		wrong.addf("secrets-project", "%q must be the id of a project", o.project)
	case !isGoogle && o.project != "":
		wrong.addf("secrets-project", "is for --secrets-provider %s only", config.SecretsInGoogle)
	case !isGoogle && len(o.locations) > 0:
		wrong.addf("secrets-locations", "is for --secrets-provider %s only", config.SecretsInGoogle)
	}
	for _, location := range o.locations {
		if !config.ValidateSecretsLocation(location) {
			wrong.addf("secrets-locations", "%q must be a region, such as europe-west1", location)
		}
	}
}

// location returns the location of the secrets, without keys. The default prefix has the id
// of the cluster, which is read from the certificate of its authority.
func (o *secretOptions) location(ctx context.Context, store storage.Store) (config.Secrets, error) {
	location := config.Secrets{Provider: o.provider, Prefix: o.secretsPrefix, Project: o.project, Locations: o.locations}
	if location.Provider == config.SecretsInStorage || location.Prefix != "" {
		return location, nil
	}
	cluster, err := o.clusterName(ctx, store)
	if err != nil {
		return config.Secrets{}, fmt.Errorf("--secrets-prefix: must be given, because the id of the cluster is not known: %w", err)
	}
	location.Prefix = config.DefaultSecretsPrefix(location.Provider, cluster)
	return location, nil
}

// clusterName returns the id of the cluster.
func (o *secretOptions) clusterName(ctx context.Context, store storage.Store) (string, error) {
	if o.newCluster != "" {
		return o.newCluster, nil
	}
	return authorityName(ctx, store)
}

// authorityName returns the name of the authority, which is the id of the cluster.
func authorityName(ctx context.Context, store storage.Store) (string, error) {
	object, err := store.Get(ctx, storage.AuthorityKey)
	if err != nil {
		return "", err
	}
	certificate, err := pki.ParseCertificate(object.Data)
	if err != nil {
		return "", fmt.Errorf("object %s: %w", storage.AuthorityKey, err)
	}
	return certificate.Subject.CommonName, identifier.Validate(certificate.Subject.CommonName)
}

// openWithoutKeys opens the secrets for listing and deleting, which need no encryption key.
func (o *secretOptions) openWithoutKeys(ctx context.Context) (secrets.Store, error) {
	store, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	location, err := o.location(ctx, store)
	if err != nil {
		return nil, err
	}
	return backend.OpenWithoutKeys(ctx, location, store)
}

// keyOptions has the flags that select the secrets of a cluster and their encryption key.
type keyOptions struct {
	secretOptions
	keyProvider, key string
	oldKeys          []string
}

func (o *keyOptions) addFlags(flags *pflag.FlagSet) {
	o.secretOptions.addFlags(flags)
	flags.StringVar(&o.keyProvider, "key-provider", keyProviderEnv, "where the key is that secrets in the storage are encrypted with: "+strings.Join(keyProviders, ", "))
	flags.StringVar(&o.key, "key", "", "environment variable (default "+defaultKey+"), path of the file, or name in the service that holds the key; for "+keyProviderKMS+" the value of aws_kms in the configuration")
	flags.StringArrayVar(&o.oldKeys, "old-key", nil, "like --key, a key that secrets were encrypted with before; may be repeated")
}

func (o *keyOptions) validate(wrong *mistakes) {
	o.secretOptions.validate(wrong)
	switch {
	case o.provider != config.SecretsInStorage:
		if o.key != "" || len(o.oldKeys) > 0 {
			wrong.addf("key", "is for --secrets-provider %s only: the service encrypts", config.SecretsInStorage)
		}
	case !slices.Contains(keyProviders, o.keyProvider):
		wrong.addf("key-provider", "%q is unknown, known are %q", o.keyProvider, keyProviders)
	case o.keyProvider == keyProviderFile && o.key == "":
		wrong.addf("key", "must be the path of the file with the key when --key-provider is %q", keyProviderFile)
	case o.keyProvider == keyProviderKMS && o.key == "":
		wrong.addf("key", "must be the value of aws_kms in the configuration when --key-provider is %q", keyProviderKMS)
	case o.keyProvider != keyProviderEnv && o.key == "":
		wrong.addf("key", "must be the name of the key in the service when --key-provider is %q", o.keyProvider)
	}
}

// source returns the location of the key with the value of --key. The encryption context of
// KMS contains the id of the cluster, which is read from the certificate of its authority.
func (o *keyOptions) source(ctx context.Context, store storage.Store, name string) (config.KeySource, error) {
	if o.keyProvider != keyProviderKMS {
		return o.named(name), nil
	}
	cluster, err := o.clusterName(ctx, store)
	if err != nil {
		return config.KeySource{}, fmt.Errorf("the id of the cluster is not known: %w", err)
	}
	key, err := config.ParseKMSKey(name, cluster)
	if err != nil {
		return config.KeySource{}, fmt.Errorf("must be the value of aws_kms in the configuration: %w", err)
	}
	return config.KeySource{KMS: key}, nil
}

// readKey reads the key with a value of --key or --old-key.
func (o *keyOptions) readKey(ctx context.Context, store storage.Store, name string) ([]byte, error) {
	source, err := o.source(ctx, store, name)
	if err != nil {
		return nil, err
	}
	return backend.ReadKey(ctx, source)
}

// named returns the location of a key that is not in KMS.
func (o *keyOptions) named(name string) config.KeySource {
	switch o.keyProvider {
	case keyProviderFile:
		return config.KeySource{File: name}
	case config.SecretsInSecretsManager:
		return config.KeySource{SecretsManager: name}
	case config.SecretsInParameterStore:
		return config.KeySource{ParameterStore: name}
	case config.SecretsInGoogle:
		return config.KeySource{GoogleSecret: name}
	}
	return config.KeySource{Env: name}
}

// openSecrets opens the secrets of the cluster and reads its keys. Reading them fails if
// the encryption key is wrong.
func (o *keyOptions) openSecrets(ctx context.Context) (secrets.Store, *clusterkeys.Keys, error) {
	store, opened, err := o.openStores(ctx)
	if err != nil {
		return nil, nil, err
	}
	loaded, err := clusterkeys.Load(ctx, store, opened)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil, fmt.Errorf("--storage-bucket: %q has no keys of a cluster, the first server that starts makes them: %w", o.bucket, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	return opened, loaded, nil
}

// openStores opens the storage and the secrets.
func (o *keyOptions) openStores(ctx context.Context) (storage.Store, secrets.Store, error) {
	if o.provider != config.SecretsInStorage {
		store, err := o.open(ctx)
		if err != nil {
			return nil, nil, err
		}
		location, err := o.location(ctx, store)
		if err != nil {
			return nil, nil, err
		}
		opened, err := backend.Open(ctx, location, store)
		return store, opened, err
	}
	store, err := o.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	key, err := o.readKey(ctx, store, cmp.Or(o.key, defaultKey))
	if err != nil {
		return nil, nil, fmt.Errorf("--key: %w", err)
	}
	old := make([][]byte, len(o.oldKeys))
	for i, name := range o.oldKeys {
		if old[i], err = o.readKey(ctx, store, name); err != nil {
			return nil, nil, fmt.Errorf("--old-key: %w", err)
		}
	}
	encrypted, err := secrets.New(store, key, old...)
	if err != nil {
		return nil, nil, fmt.Errorf("--key: %w", err)
	}
	return store, encrypted, nil
}
