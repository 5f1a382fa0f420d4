// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"path/filepath"
	"strconv"
)

// auditPolicy records who wrote what, without the objects themselves. Reads
// are left out: they are many, and nothing counts them.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
`

func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	policy := filepath.Join(cp.dir, "config", "audit-policy.yaml")
	if err := replaceFile(policy, []byte(auditPolicy)); err != nil {
		return err
	}
	certs, err := cp.authority.serving(APIServer)
	if err != nil {
		return err
	}
	privateKey, publicKey, err := cp.authority.serviceAccountKeys()
	if err != nil {
		return err
	}
	_, err = cp.Run(ctx, Spec{
		Name: APIServer,
		Argv: []string{
			cp.binaries.Kube, APIServer,
			"--etcd-servers=" + cp.etcdURL(),
			"--bind-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(cp.ports.APIServer),
			"--tls-cert-file=" + filepath.Join(certs, "tls.crt"),
			"--tls-private-key-file=" + filepath.Join(certs, "tls.key"),
			"--client-ca-file=" + cp.authority.caFile(),
			// Nobody speaks for others; the controller manager and the scheduler
			// complain for ever when the API server does not say who might.
			"--requestheader-client-ca-file=" + cp.authority.caFile(),
			"--requestheader-allowed-names=front-proxy",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--authorization-mode=Node,RBAC",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-signing-key-file=" + privateKey,
			"--service-account-key-file=" + publicKey,
			"--service-cluster-ip-range=10.0.0.0/24",
			// No Pod ever calls the "kubernetes" Service, and its endpoints may
			// not be on 127.0.0.1.
			"--advertise-address=127.0.0.1",
			"--endpoint-reconciler-type=none",
			"--audit-policy-file=" + policy,
			"--audit-log-path=" + string(cp.AuditLog()),
			// The record is written before the client has its answer.
			"--audit-log-mode=blocking",
			// MiB; never rotated in practice, for a reader keeps its offset.
			"--audit-log-maxsize=4096",
		},
		Ports: []int{cp.ports.APIServer},
		Ready: Probe{URL: cp.Server() + "/readyz", CAFile: cp.authority.caFile()},
	})
	return err
}
