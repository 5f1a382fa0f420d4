// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance/kwok"
)

// Options are what the command line says.
type Options struct {
	// ConfigPath is the path of the configuration file.
	ConfigPath string
	// DataDir is the folder of what must survive a restart.
	DataDir string
}

// Run runs the shard server of a configuration file until ctx ends. A
// configuration that is wrong gives an error with all mistakes.
func Run(ctx context.Context, o Options) error {
	c, err := config.Load(o.ConfigPath)
	if err != nil {
		return err
	}
	client, err := newClient(c.Shard.Infra.Kwok.Kubeconfig)
	if err != nil {
		return err
	}
	provider, err := kwok.New(c, client)
	if err != nil {
		return err
	}
	server := &Server{
		Config:   c,
		DataDir:  o.DataDir,
		Provider: provider,
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		},
	}
	return server.Run(ctx)
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
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("making a client from kubeconfig %s: %w", kubeconfig, err)
	}
	return client, nil
}
