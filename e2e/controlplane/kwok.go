// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
)

// kwokStages are the stages of kwok's own module that are used: Nodes become Ready and
// report their status periodically, Pods start at once, complete as their Job requires,
// and terminate when they are deleted.
//
// Nodes report by status, not by Lease: with Leases, Nodes that were created
// together were seen to stay without conditions.
var kwokStages = []string{"node/fast", "node/heartbeat", "pod/fast"}

// startKWOK runs kwok, which simulates the kubelet of every Node.
func (cp *ControlPlane) startKWOK(ctx context.Context) error {
	stages, err := cp.writeKWOKStages()
	if err != nil {
		return err
	}
	kubeconfig, err := cp.Kubeconfig(KWOK)
	if err != nil {
		return err
	}
	server := address(cp.ports.KWOK)
	_, err = cp.Run(ctx, Spec{
		Name: KWOK,
		Argv: []string{
			cp.binaries.KWOK,
			"--kubeconfig=" + kubeconfig,
			"--config=" + stages,
			"--manage-all-nodes=true",
			// Pods of marekvs, and their Node, have a kubelet of their own.
			"--disregard-status-with-label-selector=app.kubernetes.io/name=marekvs",
			"--server-address=" + server,
		},
		Ports: []int{cp.ports.KWOK},
		Ready: Probe{URL: "http://" + server + "/healthz"},
	})
	return err
}

// writeKWOKStages joins the stages into the one file that kwok reads.
func (cp *ControlPlane) writeKWOKStages() (string, error) {
	var joined [][]byte
	for _, stage := range kwokStages {
		dir := filepath.Join(cp.binaries.KWOKModule, "kustomize", "stage", stage)
		built, err := build(dir)
		if err != nil {
			return "", err
		}
		document, err := built.AsYaml()
		if err != nil {
			return "", fmt.Errorf("building kustomization %s: %w", dir, err)
		}
		joined = append(joined, document)
	}
	path := filepath.Join(cp.dir, "config", "kwok-stages.yaml")
	return path, replaceFile(path, bytes.Join(joined, []byte("---\n")))
}
