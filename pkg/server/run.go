// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// Options are what the command line says.
type Options struct {
	// Shard is the shard's id.
	Shard string
	// ID is the server's among those of the shard. Default: one that is made once
	// and kept in CacheDir.
	ID string
	// Host replaces that of every address in the configuration unless empty.
	Host string
	// Storage is the provider of the object storage, Bucket its folder or bucket,
	// and Prefix is before all keys.
	Storage, Bucket, Prefix string
	// CacheDir is a folder of this server's alone.
	CacheDir string
}

// Run runs a shard server until ctx ends. A configuration that is wrong gives an
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
		Shard:       o.Shard,
		ID:          o.ID,
		Host:        o.Host,
		Storage:     store,
		CacheDir:    o.CacheDir,
		NewProvider: newProvider,
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		},
	}
	return server.Run(ctx)
}

// Validate checks a configuration and writes to w that it is right, or returns
// an error with all mistakes. It is the file at path or, when that is empty, the
// one in the storage.
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
			c, err = source.Parse()
		}
		return source, c, err
	}
	store, err := o.open(ctx)
	if err != nil {
		return source, nil, err
	}
	if source, err = config.Read(ctx, store, o.Shard); err == nil {
		c, err = source.ParseFor(o.Shard)
	}
	return source, c, err
}

func (o Options) open(ctx context.Context) (storage.Store, error) {
	if err := identifier.Validate(o.Shard); err != nil {
		return nil, fmt.Errorf("--shard: %w", err)
	}
	return backend.Open(ctx, o.Storage, o.Bucket, o.Prefix)
}

// newProvider returns the provider that a configuration names.
func newProvider(c *config.Config, bound BoundFunc) (instance.Provider, error) {
	client, err := newClient(c.Shard.Infra.Kwok.Kubeconfig)
	if err != nil {
		return nil, err
	}
	provider, err := kwok.New(c, client)
	if err != nil {
		return nil, err
	}
	provider.Bound = bound
	return provider, nil
}

// punctual sends no request after its deadline. Without it a process that was
// paused and goes on might: its timers have not run yet.
type punctual struct {
	next http.RoundTripper
}

func (p punctual) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := storage.Ended(request.Context()); err != nil {
		return nil, err
	}
	return p.next.RoundTrip(request)
}

// newClient returns a client for the cluster that the Nodes are in.
func newClient(kubeconfig string) (kubernetes.Interface, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig (shard.infra.options.kubeconfig): %w", err)
	}
	c.UserAgent = "nstance-server"
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// The API server's priority and fairness decides how fast we may be.
	c.QPS = -1
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return punctual{next} })
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("making a client from kubeconfig %s: %w", kubeconfig, err)
	}
	return client, nil
}
