// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

const (
	keyProviderEnv  = "env"
	keyProviderFile = "file"
	// defaultKey is the environment variable of the encryption key.
	defaultKey = "NSTANCE_ENCRYPTION_KEY"
)

// storageOptions are the options that select the storage of a cluster and a tenant.
type storageOptions struct {
	storage, bucket, prefix string
	tenant                  string
}

func (o *storageOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.storage, "storage", backend.S3, "object storage of the servers: file or s3")
	flags.StringVar(&o.bucket, "storage-bucket", "", "name of the bucket, or the folder of storage file (required)")
	flags.StringVar(&o.prefix, "storage-prefix", "", "prefix of all keys in the bucket")
}

func (o *storageOptions) addTenantFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.tenant, "tenant", registration.DefaultTenant, "id of the operator's tenant")
}

func (o *storageOptions) validate(wrong *mistakes) {
	if o.storage != backend.File && o.storage != backend.S3 {
		wrong.addf("storage", "%q is unknown, known are %q and %q", o.storage, backend.File, backend.S3)
	}
	if o.bucket == "" {
		wrong.addf("storage-bucket", "must be the name of the bucket, or the folder of storage file")
	}
	wrong.add("storage-prefix", storage.CheckPrefix(o.prefix))
}

func (o *storageOptions) validateTenant(wrong *mistakes) {
	wrong.add("tenant", identifier.Validate(o.tenant))
}

func (o *storageOptions) open(ctx context.Context) (storage.Store, error) {
	store, err := backend.Open(ctx, o.storage, o.bucket, o.prefix)
	if err != nil {
		// The outer error has the name of the server's flag.
		return nil, fmt.Errorf("--storage-bucket: %w", errors.Unwrap(err))
	}
	return store, nil
}

// keyOptions are the options that select the storage and the key of its secrets.
type keyOptions struct {
	storageOptions
	keyProvider, key string
	oldKeys          []string
}

func (o *keyOptions) addFlags(flags *pflag.FlagSet) {
	o.storageOptions.addFlags(flags)
	flags.StringVar(&o.keyProvider, "key-provider", keyProviderEnv, "where the key is that secrets are encrypted with: env or file")
	flags.StringVar(&o.key, "key", "", "environment variable (default "+defaultKey+") or path of the file that holds the key")
	flags.StringArrayVar(&o.oldKeys, "old-key", nil, "like --key, a key that secrets were encrypted with before; may be repeated")
}

func (o *keyOptions) validate(wrong *mistakes) {
	o.storageOptions.validate(wrong)
	switch o.keyProvider {
	case keyProviderEnv:
	case keyProviderFile:
		if o.key == "" {
			wrong.addf("key", "must be the path of the file with the key when --key-provider is %q", keyProviderFile)
		}
	default:
		wrong.addf("key-provider", "%q is unknown, known are %q and %q", o.keyProvider, keyProviderEnv, keyProviderFile)
	}
}

// source locates the key of that name.
func (o *keyOptions) source(name string) config.KeySource {
	if o.keyProvider == keyProviderFile {
		return config.KeySource{File: name}
	}
	return config.KeySource{Env: name}
}

// openSecrets opens the secrets of the storage, and reads the keys of the cluster, which
// shows that the key is the one of the cluster.
func (o *keyOptions) openSecrets(ctx context.Context) (*secrets.Store, *clusterkeys.Keys, error) {
	key, err := secrets.ReadKey(o.source(cmp.Or(o.key, defaultKey)))
	if err != nil {
		return nil, nil, fmt.Errorf("--key: %w", err)
	}
	old := make([][]byte, len(o.oldKeys))
	for i, name := range o.oldKeys {
		if old[i], err = secrets.ReadKey(o.source(name)); err != nil {
			return nil, nil, fmt.Errorf("--old-key: %w", err)
		}
	}
	store, err := o.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	encrypted, err := secrets.New(store, key, old...)
	if err != nil {
		return nil, nil, fmt.Errorf("--key: %w", err)
	}
	loaded, err := clusterkeys.Load(ctx, store, encrypted)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil, fmt.Errorf("--storage-bucket: %q has no keys of a cluster, the first server that starts makes them: %w", o.bucket, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	return encrypted, loaded, nil
}

// clusterOptions are the options that select a cluster and its keys.
type clusterOptions struct {
	keyOptions
	clusterID string
}

func (o *clusterOptions) addFlags(flags *pflag.FlagSet) {
	o.keyOptions.addFlags(flags)
	flags.StringVar(&o.clusterID, "cluster-id", "", clusterIDUsage)
	o.addTenantFlag(flags)
}

const clusterIDUsage = "id of the cluster (default: the name in the certificate of its authority)"

func (o *clusterOptions) validate(wrong *mistakes) {
	o.keyOptions.validate(wrong)
	if o.clusterID != "" {
		wrong.add("cluster-id", identifier.Validate(o.clusterID))
	}
	o.validateTenant(wrong)
}

// loadKeys reads the keys of the cluster, and its id unless the flag is set.
func (o *clusterOptions) loadKeys(ctx context.Context) (*clusterkeys.Keys, error) {
	_, loaded, err := o.openSecrets(ctx)
	if err != nil {
		return nil, err
	}
	if o.clusterID == "" {
		if o.clusterID, err = clusterIDOf(loaded.Authority.CommonName()); err != nil {
			return nil, err
		}
	}
	return loaded, nil
}

// clusterIDOf returns the id of the cluster whose authority has a name.
func clusterIDOf(authority string) (string, error) {
	if err := identifier.Validate(authority); err != nil {
		return "", fmt.Errorf("--cluster-id: must be given, since the certificate of the authority does not name the cluster: %w", err)
	}
	return authority, nil
}
