// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"path/filepath"
	"strconv"
)

func (cp *ControlPlane) startScheduler(ctx context.Context) error {
	kubeconfig, err := cp.kubeconfigFor("system:kube-scheduler")
	if err != nil {
		return err
	}
	certs, err := cp.authority.serving(Scheduler)
	if err != nil {
		return err
	}
	_, err = cp.Run(ctx, Spec{
		Name: Scheduler,
		Argv: []string{
			cp.binaries.Kube, Scheduler,
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(cp.ports.Scheduler),
			"--tls-cert-file=" + filepath.Join(certs, "tls.crt"),
			"--tls-private-key-file=" + filepath.Join(certs, "tls.key"),
			"--leader-elect=false",
		},
		Ports: []int{cp.ports.Scheduler},
		Ready: Probe{
			URL:    "https://" + address(cp.ports.Scheduler) + "/readyz",
			CAFile: cp.authority.caFile(),
		},
	})
	return err
}
