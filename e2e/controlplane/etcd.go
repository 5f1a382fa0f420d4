// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"path/filepath"
)

// startEtcd runs a single etcd member. It does not sync its files to disk:
// the data is worthless after a crash of the machine, and fsync is slow on a small
// machine.
func (cp *ControlPlane) startEtcd(ctx context.Context) error {
	peer := "http://" + address(cp.ports.EtcdPeer)
	_, err := cp.Run(ctx, Spec{
		Name: Etcd,
		Argv: []string{
			cp.binaries.Kube, "etcd",
			"--name=devcluster",
			"--data-dir=" + filepath.Join(cp.dir, "etcd"),
			"--listen-client-urls=" + cp.etcdURL(),
			"--advertise-client-urls=" + cp.etcdURL(),
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=devcluster=" + peer,
			"--unsafe-no-fsync",
			"--auto-compaction-retention=5m",
			"--log-level=warn",
		},
		Ports: []int{cp.ports.Etcd, cp.ports.EtcdPeer},
		Ready: Probe{URL: cp.etcdURL() + "/health"},
	})
	return err
}

func (cp *ControlPlane) etcdURL() string { return "http://" + address(cp.ports.Etcd) }
