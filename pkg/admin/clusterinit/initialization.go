// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterinit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

// encryptionKeySize is the size of the encryption key (docs/server-reference.md#keys).
const encryptionKeySize = 32

// initialization is a run of the command.
type initialization struct {
	options   *options
	access    Access
	providers provider.Registry
	output    io.Writer
}

// run validates everything before it writes anything.
func (i *initialization) run(ctx context.Context) error {
	sources, err := i.readConfigs()
	if err != nil {
		return err
	}
	store, err := i.access.OpenStorage(ctx)
	if err != nil {
		return err
	}
	if err := i.checkOwner(ctx, store); err != nil {
		return err
	}
	if err := checkWrites(ctx, store); err != nil {
		return err
	}
	if err := i.ensureEncryptionKey(ctx, store); err != nil {
		return err
	}
	opened, err := i.access.OpenSecrets(ctx)
	if err != nil {
		return err
	}
	loaded, err := i.ensureKeys(ctx, store, opened)
	if err != nil {
		return err
	}
	for _, source := range sources {
		if err := i.storeConfig(ctx, store, source); err != nil {
			return err
		}
	}
	if err := i.issueNonces(ctx, opened, loaded); err != nil {
		return err
	}
	return i.print("\nKeep %s: all servers of the cluster need it, and without it the CA is lost.\n", i.access.KeyPlace())
}

func (i *initialization) print(format string, args ...any) error {
	_, err := fmt.Fprintf(i.output, format, args...)
	return err
}

// report prints what was created, or what existed.
func (i *initialization) report(created bool, format string, args ...any) error {
	did := "exists "
	if created {
		did = "created"
	}
	return i.print("%s  %s\n", did, fmt.Sprintf(format, args...))
}

// checkOwner returns an error if the storage belongs to another cluster.
func (i *initialization) checkOwner(ctx context.Context, store storage.Store) error {
	object, err := store.Get(ctx, storage.AuthorityKey)
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the certificate of the authority: %w", err)
	}
	certificate, err := pki.ParseCertificate(object.Data)
	if err != nil {
		return fmt.Errorf("object %s: %w", storage.AuthorityKey, err)
	}
	if name := certificate.Subject.CommonName; name != i.access.ClusterID() {
		return fmt.Errorf("--cluster-id: %q must be %q, because the storage has the CA of this cluster", i.access.ClusterID(), name)
	}
	return nil
}

// checkWrites returns an error if the storage lets a write replace an object that the writer has
// not read. Two servers would then lead one shard (docs/server-reference.md#storage).
func checkWrites(ctx context.Context, store storage.Store) (err error) {
	key := "init/" + strings.ToLower(rand.Text())
	first, err := store.Create(ctx, key, []byte("1"))
	if err != nil {
		return fmt.Errorf("write object %s to the storage: %w", key, err)
	}
	defer func() {
		if deleteErr := store.Delete(ctx, key); deleteErr != nil {
			err = errors.Join(err, fmt.Errorf("delete object %s, which was a test of the storage: %w", key, deleteErr))
		}
	}()
	if _, err = store.Create(ctx, key, []byte("2")); !errors.Is(err, storage.ErrConflict) {
		return unconditional("created although it existed (If-None-Match)", key, err)
	}
	if _, err = store.Replace(ctx, key, []byte("3"), first); err != nil {
		return fmt.Errorf("replace object %s: %w", key, err)
	}
	if _, err = store.Replace(ctx, key, []byte("4"), first); !errors.Is(err, storage.ErrConflict) {
		return unconditional("replaced although it had changed (If-Match)", key, err)
	}
	return nil
}

// unconditional returns the error for a write that had to be rejected, and was not if err is nil.
func unconditional(what, key string, err error) error {
	if err != nil {
		return fmt.Errorf("test the storage with object %s: %w", key, err)
	}
	return fmt.Errorf("the storage has no conditional writes: object %s was %s; use another service", key, what)
}

// ensureEncryptionKey creates the file of the encryption key if it does not exist. If the storage
// has secrets already, another key could not read them.
func (i *initialization) ensureEncryptionKey(ctx context.Context, store storage.Store) error {
	path := i.access.KeyFile()
	if path == "" {
		return nil
	}
	_, err := os.Stat(path)
	if err == nil {
		return i.report(false, "encryption key, file %s", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--key: %w", err)
	}
	secretObjects, err := store.List(ctx, storage.SecretPrefix)
	if err != nil {
		return fmt.Errorf("list the secrets of the storage: %w", err)
	}
	if len(secretObjects) > 0 {
		return fmt.Errorf("--key: file %s does not exist, and object %s was encrypted with the key of the cluster: copy the key of its servers there", path, secretObjects[0].Key)
	}
	key := make([]byte, encryptionKeySize)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("generate an encryption key: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--key: %w", err)
	}
	_, err = fmt.Fprintln(file, base64.StdEncoding.EncodeToString(key))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("--key: write %s: %w", path, err)
	}
	return i.report(true, "encryption key, file %s", path)
}

// ensureKeys creates the missing keys of the cluster, as its first server would.
func (i *initialization) ensureKeys(ctx context.Context, store storage.Store, opened secrets.Store) (*clusterkeys.Keys, error) {
	_, err := clusterkeys.Load(ctx, store, opened)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return nil, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	missing := err != nil
	loaded, err := clusterkeys.Ensure(ctx, store, opened, i.access.ClusterID())
	if err != nil {
		return nil, fmt.Errorf("create the keys of the cluster: %w", err)
	}
	return loaded, i.report(missing, "CA and key of nonces of cluster %s, certificate %s", i.access.ClusterID(), storage.AuthorityKey)
}

// readConfigs returns the configurations of --config, which are valid and of this cluster.
func (i *initialization) readConfigs() ([]*config.Config, error) {
	var parsed []*config.Config
	for _, path := range i.options.configs {
		source, err := config.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		c, err := source.Parse(i.providers)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		if c.ClusterID != i.access.ClusterID() {
			return nil, fmt.Errorf("--config: %s: cluster.id is %q, must be the value of --cluster-id, %q", path, c.ClusterID, i.access.ClusterID())
		}
		if c.Secrets.Provider != i.access.SecretsProvider() {
			return nil, fmt.Errorf("--config: %s: cluster.secrets.provider is %q, must be the value of --secrets-provider, %q: the servers would not find the keys",
				path, c.Secrets.Provider, i.access.SecretsProvider())
		}
		parsed = append(parsed, c)
	}
	return parsed, nil
}

// storeConfig copies a configuration to the storage. It replaces a different one only with
// --replace-config, because a server may use it.
func (i *initialization) storeConfig(ctx context.Context, store storage.Store, c *config.Config) error {
	key := storage.ConfigKey(c.Shard.ID)
	_, err := store.Create(ctx, key, c.Source.Data)
	if err == nil {
		return i.report(true, "configuration of shard %s, object %s", c.Shard.ID, key)
	}
	if !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("store the configuration of shard %s: %w", c.Shard.ID, err)
	}
	present, err := store.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("read the configuration of shard %s: %w", c.Shard.ID, err)
	}
	if bytes.Equal(present.Data, c.Source.Data) {
		return i.report(false, "configuration of shard %s, object %s", c.Shard.ID, key)
	}
	if !i.options.replaceConfigs {
		return fmt.Errorf("--config: object %s differs from %s: repeat the command with --replace-config to replace the object", key, c.Source.Key)
	}
	if _, err := store.Replace(ctx, key, c.Source.Data, present.ETag); err != nil {
		return fmt.Errorf("replace the configuration of shard %s: %w", c.Shard.ID, err)
	}
	return i.report(true, "configuration of shard %s, object %s, in place of another", c.Shard.ID, key)
}

// issueNonces writes the files and the secret that an operator registers with.
func (i *initialization) issueNonces(ctx context.Context, opened secrets.Store, loaded *clusterkeys.Keys) error {
	if folder := i.options.identity; folder != "" {
		nonce, err := i.access.Nonce(ctx, loaded, i.options.nonceLifetime)
		if err != nil {
			return err
		}
		if err := writeIdentity(folder, loaded.Authority.CertificatePEM(), []byte(nonce)); err != nil {
			return fmt.Errorf("--%s: %w", identityfolder.Flag, err)
		}
		if err := i.report(true, "CA and nonce of the operator, valid for %s, in %s", i.options.nonceLifetime, folder); err != nil {
			return err
		}
	}
	if name := i.options.nonceSecret; name != "" {
		nonce, err := i.access.Nonce(ctx, loaded, i.options.nonceLifetime)
		if err != nil {
			return err
		}
		if err := i.access.AuditSecret(ctx, name); err != nil {
			return err
		}
		if err := opened.Set(ctx, name, []byte("NONCE="+nonce+"\n")); err != nil {
			return fmt.Errorf("--nonce-secret: %w", err)
		}
		return i.report(true, "secret %s with a nonce of the operator, valid for %s", name, i.options.nonceLifetime)
	}
	return nil
}

// writeIdentity writes files that only their owner can read.
func writeIdentity(folder string, authority, nonce []byte) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(folder, identityfolder.AuthorityFile), authority, 0o600),
		os.WriteFile(filepath.Join(folder, identityfolder.NonceFile), nonce, 0o600),
	)
}
