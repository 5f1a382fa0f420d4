// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package testcluster gives the tests of one package a control plane with an
// installation of Nstance that they share.
package testcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// Options of a cluster.
type Options struct {
	// Without names parts of the control plane to leave out.
	Without []string
	// AuditReads are the users whose reads the audit log holds too.
	AuditReads []string
	// Shards are those of the installation. Their servers are started.
	Shards []nstance.Shard
}

// Cluster is what the tests share.
type Cluster struct {
	*controlplane.ControlPlane
	Nstance *nstance.Nstance
	// Kubectl is the command line of an administrator.
	Kubectl []string
}

// Main is what TestMain has to do: it starts the cluster, calls ready with it,
// runs the tests and ends the program. Of a run that failed the logs stay.
func Main(m *testing.M, o Options, ready func(context.Context, *Cluster) error) {
	code, err := run(context.Background(), m, o, ready)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M, o Options, ready func(context.Context, *Cluster) error) (code int, err error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return 1, err
	}
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(ctx)
	if err != nil {
		return 1, err
	}
	operator, server, err := builder.Product(ctx)
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "nstance-e2e-")
	if err != nil {
		return 1, err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{
		Dir: dir, Binaries: binaries, Namespace: nstance.Namespace, Without: o.Without, AuditReads: o.AuditReads,
	})
	if err != nil {
		return 1, err
	}
	defer func() {
		stopped := cp.Stop(context.WithoutCancel(ctx))
		if err == nil {
			err = stopped
		}
		if code == 0 && err == nil {
			err = os.RemoveAll(dir)
			return
		}
		fmt.Fprintln(os.Stderr, "logs of the cluster:", filepath.Join(dir, "logs"))
	}()

	n, err := nstance.Install(ctx, cp, nstance.Options{
		Manifests: filepath.Join(root, "manifests"),
		Operator:  operator,
		Server:    server,
		Shards:    o.Shards,
	})
	if err != nil {
		return 1, err
	}
	if err := n.StartShards(ctx); err != nil {
		return 1, err
	}
	cluster := &Cluster{ControlPlane: cp, Nstance: n, Kubectl: []string{binaries.Kube, "kubectl", "--kubeconfig", cp.KubeconfigPath()}}
	if err := ready(ctx, cluster); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// Config is an administrator's access without a limit of its own: tests must not
// wait for themselves.
func (c *Cluster) Config() *rest.Config {
	config := c.AdminConfig()
	config.QPS = -1
	return config
}
