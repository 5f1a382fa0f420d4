// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
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
			// As in OpenShift: who changes the owners of an object needs the right to delete it.
			"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
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
			// MiB: so large that the file is never rotated, because a reader keeps its offset.
			"--audit-log-maxsize=4096",
		}, nodeFlags...),
		// Garbage collection would be a third of its work.
		Env:   []string{"GOGC=400"},
		Ports: []int{cp.ports.APIServer},
		Ready: Probe{URL: cp.Server() + "/readyz", CAFile: cp.authority.caFile()},
	})
	if err != nil || cp.nodes == nil {
		return err
	}
	return cp.allowNodes(ctx)
}

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

// kwokStages are the stages that are used, from kwok's module
// (https://kwok.sigs.k8s.io/docs/user/stages-configuration/): Nodes become Ready and report their
// status periodically, Pods start at once, complete as their Job requires, and terminate when they
// are deleted.
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
			// Package marekvsstore is the kubelet of the Pods of marekvs and of their Node.
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
