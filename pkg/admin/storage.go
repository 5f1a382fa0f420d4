// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// storageOptions has the flags that select the storage of a cluster and a tenant.
type storageOptions struct {
	storage, bucket, prefix string
	tenant                  string
}

func (o *storageOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.storage, "storage", backend.S3, "object storage of the servers: file, gcs or s3")
	flags.StringVar(&o.bucket, "storage-bucket", "", "name of the bucket, or the folder of storage file (required)")
	flags.StringVar(&o.prefix, "storage-prefix", "", "prefix of all keys in the bucket")
}

func (o *storageOptions) addTenantFlag(flags *pflag.FlagSet) {
	flags.StringVar(&o.tenant, "tenant", registration.DefaultTenant, "id of the operator's tenant")
}

func (o *storageOptions) validate(wrong *mistakes) {
	if !slices.Contains(backend.Known, o.storage) {
		wrong.addf("storage", "%q is unknown, known are %q, %q and %q", o.storage, backend.File, backend.GCS, backend.S3)
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
		// The outer error names the flag of the server, --bucket.
		return nil, fmt.Errorf("--storage-bucket: %w", errors.Unwrap(err))
	}
	return store, nil
}

// audit stores an entry of the audit log, with the user of the command.
func (o *storageOptions) audit(ctx context.Context, entry auditlog.Entry) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	entry.Writer = writer()
	return auditlog.Log{Store: store, Scope: storage.ClusterAuditLog}.Write(ctx, entry)
}

// writer returns who runs the command, as the machine has it. Who has written the object is known
// from the logs of the storage only.
func writer() string {
	name := "an unknown user"
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return "nstance-admin, " + name + "@" + host
}

// clusterOptions has the flags that select a cluster and its keys.
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

// loadKeys reads the keys of the cluster, and sets clusterID unless --cluster-id is set.
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

// initAccess is the cluster that cluster init creates.
type initAccess struct {
	clusterOptions
}

// AddFlags implements clusterinit.Access.
func (a *initAccess) AddFlags(flags *pflag.FlagSet) {
	a.addFlags(flags)
	flags.Lookup("cluster-id").Usage = "id of the cluster (required)"
}

// Validate implements clusterinit.Access.
func (a *initAccess) Validate() error {
	var wrong mistakes
	a.keyOptions.validate(&wrong)
	a.validateTenant(&wrong)
	a.newCluster = a.clusterID
	return wrong.join()
}

// ClusterID implements clusterinit.Access.
func (a *initAccess) ClusterID() string { return a.clusterID }

// SecretsProvider implements clusterinit.Access.
func (a *initAccess) SecretsProvider() string { return a.provider }

// KeyFile implements clusterinit.Access.
func (a *initAccess) KeyFile() string {
	if a.provider != config.SecretsInStorage || a.keyProvider != keyProviderFile {
		return ""
	}
	return a.key
}

// KeyPlace implements clusterinit.Access.
func (a *initAccess) KeyPlace() string {
	if a.provider != config.SecretsInStorage {
		return "the secrets " + storage.AuthoritySecret + " and " + storage.NonceSecret + " in " + a.provider
	}
	if a.keyProvider == keyProviderKMS {
		return "the ciphertext of the encryption key, and the key of KMS"
	}
	return "the encryption key, " + a.named(cmp.Or(a.key, defaultKey)).String()
}

// OpenStorage implements clusterinit.Access.
func (a *initAccess) OpenStorage(ctx context.Context) (storage.Store, error) {
	if a.storage == backend.File {
		// Only this command creates the folder: any other would hide a misspelled name.
		if err := os.Mkdir(a.bucket, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("--storage-bucket: %w", err)
		}
	}
	return a.open(ctx)
}

// OpenSecrets implements clusterinit.Access.
func (a *initAccess) OpenSecrets(ctx context.Context) (secrets.Store, error) {
	_, opened, err := a.openStores(ctx)
	return opened, err
}

// Nonce implements clusterinit.Access.
func (a *initAccess) Nonce(ctx context.Context, loaded *clusterkeys.Keys, lifetime time.Duration) (string, error) {
	nonces := nonceOptions{clusterOptions: a.clusterOptions}
	return nonces.operatorNonce(ctx, registration.NewNonceSigner(loaded.Nonce), lifetime)
}

// AuditSecret implements clusterinit.Access.
func (a *initAccess) AuditSecret(ctx context.Context, name string) error {
	return a.auditSecret(ctx, audit.SetSecret, name, "command")
}

// clusterIDOf returns the id of a cluster, which is the name of its authority.
func clusterIDOf(authority string) (string, error) {
	if err := identifier.Validate(authority); err != nil {
		return "", fmt.Errorf("--cluster-id: must be given, since the certificate of the authority does not name the cluster: %w", err)
	}
	return authority, nil
}
