// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machines runs Nstance on real nodes: each instance is a container with a kubelet
// and an agent. It needs Docker, and root or a Docker that this user may use.
package machines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/podroutes"
	"nstance.dev/operator/e2e/testcluster"
)

// enabled is the environment variable without which the tests are skipped: make
// test-machines sets it.
const enabled = "NSTANCE_TEST_MACHINES"

// drainTimeout is how long a Node may take that cannot be drained.
const drainTimeout = 30 * time.Second

var (
	shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}
	// env is the cluster that all tests of this package share, and docker has its nodes.
	env    *testcluster.Cluster
	docker *dockerhost.Host
)

func TestMain(m *testing.M) {
	if os.Getenv(enabled) == "" {
		fmt.Printf("skipped: %s is not set (make test-machines)\n", enabled)
		os.Exit(0)
	}
	if err := open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shards := installation.Shards(shardIDs...)
	for i := range shards {
		shards[i].DrainTimeout = drainTimeout
	}
	var routes sync.WaitGroup
	testcluster.Main(m, &env, testcluster.Options{
		Without: []string{controlplane.KWOK}, Machines: docker, Shards: shards, OperatorFlags: []string{},
		Prepare: func(ctx context.Context) error {
			routes.Go(func() {
				if err := podroutes.Run(ctx, env.Kube); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			})
			return nil
		},
		Closed: func() error {
			routes.Wait()
			return docker.Close()
		},
	})
}

func open() error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	docker, err = dockerhost.Open(context.Background(), filepath.Join(root, "e2e", ".cache", "docker"))
	return err
}
