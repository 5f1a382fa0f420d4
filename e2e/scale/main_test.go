// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package scale shows what an installation of a thousand groups costs: a control
// plane of its own, three shard servers that have the groups in their
// configuration, and an operator that starts when they are all there.
package scale

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

// groups is how many groups each of the shards has. None has an instance: it is
// the objects that are counted here.
const groups = 1000

var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that the test and the benchmark share.
var env *environment

type environment struct {
	cp      *controlplane.ControlPlane
	n       *nstance.Nstance
	kube    kubernetes.Interface
	nstance versioned.Interface
	capi    *capi.Client
	dynamic dynamic.Interface
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
	cp, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Binaries: binaries, Namespace: nstance.Namespace})
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

	env = &environment{cp: cp}
	env.n, err = nstance.Install(ctx, cp, nstance.Options{
		Manifests: filepath.Join(root, "manifests"),
		Operator:  operator,
		Server:    server,
		Shards:    shards(),
	})
	if err != nil {
		return 1, err
	}
	if err := env.n.StartShards(ctx); err != nil {
		return 1, err
	}
	// The tests must not wait for themselves.
	config := cp.AdminConfig()
	config.QPS = -1
	if env.kube, err = kubernetes.NewForConfig(config); err != nil {
		return 1, err
	}
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

// shards all have the same groups.
func shards() []nstance.Shard {
	configured := map[string]nstance.Group{}
	for i := range groups {
		configured[groupName(i)] = nstance.Group{Size: 0}
	}
	var shards []nstance.Shard
	for _, id := range shardIDs {
		shards = append(shards, nstance.Shard{ID: id, Groups: configured})
	}
	return shards
}

func groupName(i int) string { return fmt.Sprintf("group-%03d", i) }
