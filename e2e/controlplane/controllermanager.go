// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"path/filepath"
	"strconv"
)

func (cp *ControlPlane) startControllerManager(ctx context.Context) error {
	kubeconfig, err := cp.kubeconfigFor("system:kube-controller-manager")
	if err != nil {
		return err
	}
	certs, err := cp.authority.serving(ControllerManager)
	if err != nil {
		return err
	}
	nodeFlags, err := cp.nodes.controllerManagerFlags(cp.authority)
	if err != nil {
		return err
	}
	_, err = cp.Run(ctx, Spec{
		Name: ControllerManager,
		Argv: append([]string{
			cp.binaries.Kube, ControllerManager,
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(cp.ports.ControllerManager),
			"--tls-cert-file=" + filepath.Join(certs, "tls.crt"),
			"--tls-private-key-file=" + filepath.Join(certs, "tls.key"),
			"--leader-elect=false",
			"--use-service-account-credentials",
			"--service-account-private-key-file=" + cp.authority.serviceAccountKeyFile(),
			"--root-ca-file=" + cp.authority.caFile(),
		}, nodeFlags...),
		Ports: []int{cp.ports.ControllerManager},
		Ready: Probe{
			URL:    "https://" + address(cp.ports.ControllerManager) + "/healthz",
			CAFile: cp.authority.caFile(),
		},
	})
	return err
}
