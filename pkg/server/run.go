// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"fmt"
	"io"
	"net"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider/registry"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// Options are the options of the command line.
type Options struct {
	// Shard is the shard's id.
	Shard string
	// ID identifies the server among those of the shard. Default: one that is
	// generated once and stored in CacheDir.
	ID string
	// Host replaces that of every address in the configuration unless empty.
	Host string
	// Storage is the provider of the object storage, Bucket its folder or bucket,
	// and Prefix the prefix of all keys.
	Storage, Bucket, Prefix string
	// CacheDir is a folder of this server alone.
	CacheDir string
}

// Run runs a shard server until ctx is done. An invalid configuration gives an
// error with all mistakes.
func Run(ctx context.Context, o Options) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	if o.ID != "" {
		if err := identifier.Validate(o.ID); err != nil {
			return fmt.Errorf("--id: %w", err)
		}
	}
	server := &Server{
		Shard:     o.Shard,
		ID:        o.ID,
		Host:      o.Host,
		Storage:   store,
		CacheDir:  o.CacheDir,
		Providers: registry.Providers,
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		},
	}
	return server.Run(ctx)
}

// Validate checks a configuration and writes to w that it is valid, or returns an
// error with all mistakes. The configuration is the file at path or, when that is
// empty, the one in the storage.
func Validate(ctx context.Context, o Options, path string, w io.Writer) error {
	source, c, err := o.config(ctx, path)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: shard %s of cluster %s is valid\n", source.Key, c.Shard.ID, c.ClusterID)
	return err
}

func (o Options) config(ctx context.Context, path string) (source config.Source, c *config.Config, err error) {
	if path != "" {
		if source, err = config.ReadFile(path); err == nil {
			c, err = source.Parse(registry.Providers)
		}
		return source, c, err
	}
	store, err := o.open(ctx)
	if err != nil {
		return source, nil, err
	}
	if source, err = config.Read(ctx, store, o.Shard); err == nil {
		c, err = source.ParseFor(o.Shard, registry.Providers)
	}
	return source, c, err
}

func (o Options) open(ctx context.Context) (storage.Store, error) {
	if err := identifier.Validate(o.Shard); err != nil {
		return nil, fmt.Errorf("--shard: %w", err)
	}
	return backend.Open(ctx, o.Storage, o.Bucket, o.Prefix)
}
