// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditPolicy records the metadata of requests: of every write, and of the reads of the
// given users only, because there are many. A watch of such a user is recorded both
// when it begins and when it is closed, which may be after the test.
func auditPolicy(readers []string) ([]byte, error) {
	policy := auditv1.Policy{
		TypeMeta:   metav1.TypeMeta{APIVersion: auditv1.SchemeGroupVersion.String(), Kind: "Policy"},
		OmitStages: []auditv1.Stage{auditv1.StageRequestReceived, auditv1.StagePanic},
	}
	if len(readers) > 0 {
		policy.Rules = append(policy.Rules, auditv1.PolicyRule{Level: auditv1.LevelMetadata, Users: readers})
	}
	policy.Rules = append(policy.Rules,
		auditv1.PolicyRule{Level: auditv1.LevelNone, Verbs: readVerbs},
		auditv1.PolicyRule{Level: auditv1.LevelMetadata, OmitStages: []auditv1.Stage{auditv1.StageResponseStarted}})
	encoded, err := json.Marshal(policy)
	if err != nil {
		return nil, fmt.Errorf("encoding the audit policy: %w", err)
	}
	return encoded, nil
}

func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	policy := filepath.Join(cp.dir, "config", "audit-policy.json")
	encoded, err := auditPolicy(cp.auditReads)
	if err != nil {
		return err
	}
	if err := replaceFile(policy, encoded); err != nil {
		return err
	}
	certs, err := cp.authority.serving(APIServer, cp.nodes.addresses()...)
	if err != nil {
		return err
	}
	privateKey, publicKey, err := cp.authority.serviceAccountKeys()
	if err != nil {
		return err
	}
	nodeFlags, err := cp.nodes.apiServerFlags(cp.authority)
	if err != nil {
		return err
	}
	_, err = cp.Run(ctx, Spec{
		Name: APIServer,
		Argv: append([]string{
			cp.binaries.Kube, APIServer,
			"--etcd-servers=" + cp.etcdURL(),
			"--bind-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(cp.ports.APIServer),
			"--tls-cert-file=" + filepath.Join(certs, "tls.crt"),
			"--tls-private-key-file=" + filepath.Join(certs, "tls.key"),
			"--client-ca-file=" + cp.authority.caFile(),
			// There is no authenticating proxy, but the controller manager and the
			// scheduler log errors when this certificate authority is not published.
			"--requestheader-client-ca-file=" + cp.authority.caFile(),
			"--requestheader-allowed-names=front-proxy",
			"--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--authorization-mode=Node,RBAC",
			"--service-account-issuer=" + serviceAccountIssuer,
			"--service-account-signing-key-file=" + privateKey,
			"--service-account-key-file=" + publicKey,
			"--service-cluster-ip-range=10.0.0.0/24",
			// No Pod ever calls the "kubernetes" Service, and its endpoints may
			// not be on 127.0.0.1.
			"--advertise-address=127.0.0.1",
			"--endpoint-reconciler-type=none",
			"--audit-policy-file=" + policy,
			"--audit-log-path=" + string(cp.AuditLog()),
			// The record is written before the client gets the response.
			"--audit-log-mode=blocking",
			// MiB; never rotated in practice, for a reader keeps its offset.
			"--audit-log-maxsize=4096",
		}, nodeFlags...),
		// Garbage collection is a third of its work, and there is memory.
		Env:   []string{"GOGC=400"},
		Ports: []int{cp.ports.APIServer},
		Ready: Probe{URL: cp.Server() + "/readyz", CAFile: cp.authority.caFile()},
	})
	if err != nil || cp.nodes == nil {
		return err
	}
	return cp.allowNodes(ctx)
}
