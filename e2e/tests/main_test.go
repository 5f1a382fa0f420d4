// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package tests shows the operator's promises on a real control plane: etcd,
// kube-apiserver, Cluster API, three shard servers, and operators with no more
// rights than the shipped ones.
package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

// resync is short, so that quiet means quiet in spite of it.
const resync = time.Minute

// shardIDs are the shards of the cluster, in the order that pools list them.
var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that all tests of this package share.
var env *environment

type environment struct {
	cp       *controlplane.ControlPlane
	n        *nstance.Nstance
	kube     kubernetes.Interface
	nstance  versioned.Interface
	capi     *capi.Client
	dynamic  dynamic.Interface
	shards   []nstance.Shard
	operator nstance.Operator
	// kubectl is the command line of an administrator.
	kubectl []string
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
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
	cp, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Binaries: binaries, Namespace: nstance.Namespace, AuditReads: []string{capiUser}})
	if err != nil {
		return 1, err
	}
	defer func() {
		stopped := cp.Stop(context.Background())
		if err == nil {
			err = stopped
		}
		if code == 0 && err == nil {
			err = os.RemoveAll(dir)
			return
		}
		fmt.Fprintln(os.Stderr, "logs of the cluster:", filepath.Join(dir, "logs"))
	}()

	env = &environment{cp: cp, kubectl: []string{binaries.Kube, "kubectl", "--kubeconfig", cp.KubeconfigPath()}}
	for _, id := range shardIDs {
		env.shards = append(env.shards, nstance.Shard{ID: id})
	}
	env.n, err = nstance.Install(ctx, cp, nstance.Options{
		Manifests: filepath.Join(root, "manifests"),
		Operator:  operator,
		Server:    server,
		Shards:    env.shards,
	})
	if err != nil {
		return 1, err
	}
	if err := env.n.StartShards(ctx); err != nil {
		return 1, err
	}
	env.operator, err = env.n.StartOperator(ctx, nstance.Operator{
		Component: "operator",
		Flags:     []string{"--resync-period", resync.String()},
	})
	if err != nil {
		return 1, err
	}
	if env.kube, err = kubernetes.NewForConfig(cp.AdminConfig()); err != nil {
		return 1, err
	}
	// The tests must not wait for themselves.
	config := cp.AdminConfig()
	config.QPS = -1
	if env.nstance, err = versioned.NewForConfig(config); err != nil {
		return 1, err
	}
	if env.capi, err = capi.NewForConfig(config); err != nil {
		return 1, err
	}
	if env.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
