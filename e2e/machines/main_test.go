// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machines runs Nstance on real nodes: each instance is a container with a kubelet
// and an agent. It needs Docker, and root or a Docker that this user may use.
package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/clusterdns"
	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/podroutes"
	"nstance.dev/operator/e2e/testcluster"
)

// enabled is the environment variable without which the tests are skipped: make
// test-machines sets it.
const enabled = "NSTANCE_TEST_MACHINES"

// leaderTimeout gives Docker some seconds for each container also on a machine that is busy:
// a server makes no call for which its lease may be too short.
const leaderTimeout = 30 * time.Second

// drainTimeout is longer than any drain that can be completed. staticGroups have their own.
const drainTimeout = 5 * time.Minute

var (
	// shardIDs are unique to this checkout of the repository: the containers of other checkouts on
	// this machine are left alone.
	shardIDs []string
	// env is the cluster that all tests of this package share, and docker has its nodes,
	// whose containers are recorded.
	env        *testcluster.Cluster
	docker     *dockerhost.Host
	containers *containerLog
	podNetwork *podroutes.Network
	// volumes is a folder of this machine that all nodes share.
	volumes string
	// running is locked until this program exits.
	running *os.File
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
		shards[i].DrainTimeout, shards[i].LeaderTimeout = drainTimeout, leaderTimeout
		shards[i].Groups = staticGroups(shards[i].ID)
	}
	var background sync.WaitGroup
	var routesErr, dnsErr error
	testcluster.Main(m, &env, testcluster.Options{
		Without: []string{controlplane.KWOK}, Shards: shards, OperatorFlags: []string{"--on-demand-namespaces=*"},
		Machines: docker, PodNetwork: podNetwork.String(), ClusterDNS: podNetwork.DNSAddress().String(),
		MachineVolumes: []string{volumes + ":" + volumes},
		Prepare: func(ctx context.Context) error {
			containers = newContainerLog()
			background.Go(func() { containers.run(ctx, docker) })
			background.Go(func() { routesErr = podroutes.Run(ctx, env.Kube) })
			background.Go(func() { dnsErr = clusterdns.Run(ctx, env.Kube, podNetwork.DNSAddress()) })
			return nil
		},
		Closed: func() error {
			background.Wait()
			return errors.Join(routesErr, dnsErr, removeNodes(), os.RemoveAll(volumes), podNetwork.Close(), docker.Close())
		},
	})
}

func open() error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	for _, zone := range []string{"us-west-2a", "us-west-2b", "us-west-2c"} {
		shardIDs = append(shardIDs, zone+"-"+dockerhost.Suffix(root))
	}
	// The next run removes the containers of this run.
	lock, err := os.OpenFile(filepath.Join(root, "e2e", ".cache", "machines.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s, maybe the tests run already: %w", lock.Name(), err)
	}
	running = lock
	if podNetwork, err = podroutes.Claim(root); err != nil {
		return err
	}
	if err := podNetwork.AddDNSAddress(); err != nil {
		return err
	}
	if volumes, err = os.MkdirTemp("", "nstance-volumes-"); err != nil {
		return err
	}
	ctx := context.Background()
	if docker, err = dockerhost.Open(ctx, filepath.Join(root, "e2e", ".cache", "docker")); err != nil {
		return err
	}
	// A killed run may have left containers.
	_, err = docker.RemoveNodes(ctx, shardIDs...)
	return err
}

// removeNodes removes the containers that are left, and returns an error if there are any:
// each test has scaled its pool to zero.
func removeNodes() error {
	ctx := context.Background()
	left, err := docker.Nodes(ctx, shardIDs...)
	if err != nil || len(left) == 0 {
		return err
	}
	var names []string
	for _, node := range left {
		names = append(names, strings.Join(node.Names, " ")+" "+node.Status)
	}
	_, err = docker.RemoveNodes(ctx, shardIDs...)
	return errors.Join(fmt.Errorf("containers of nodes are left: %q", names), err)
}
