// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package installation installs Nstance on a running control plane as an administrator
// does: it applies the repository's manifests, and the CA and a nonce, which it takes from
// the keys of the cluster like nstance-admin. Shard servers and operators run as processes:
// the operators with the arguments, the environment and the ServiceAccount of their
// Deployment.
package installation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/server/pki"
)

// Names and ids of every installation.
const (
	Namespace = "nstance-system"
	ClusterID = "dev"
	Tenant    = "default"
	// ClusterName is the name of the Cluster, and of the NstanceCluster.
	ClusterName = ClusterID + "--" + Tenant
	// OperatorUser is the operator in the API server's audit log.
	OperatorUser = "system:serviceaccount:" + Namespace + ":" + serviceAccount

	serviceAccount = "nstance-operator"
	// certificateLifetime is longer than any cluster that this package starts.
	certificateLifetime = 365 * 24 * time.Hour
)

// Options of an installation.
type Options struct {
	// Manifests is the repository's folder of that name.
	Manifests string
	// Operator and Server are the paths of the programs.
	Operator, Server string
	// Shards are the shards in the operator's configuration. Ports that are zero are chosen.
	Shards []Shard
	// Workload is the control plane of the Nodes and Pods. If it is nil, they are in the control
	// plane of the operator.
	Workload *controlplane.ControlPlane
	// Machines makes each instance a machine. If it is nil, instances are Nodes that kwok
	// simulates.
	Machines *Machines
}

// Installation is an installation of Nstance. Its shard servers and operators are components
// of the control plane, which stops them.
type Installation struct {
	options   Options
	cp        *controlplane.ControlPlane
	client    kubernetes.Interface
	authority *pki.Authority
	dir       string
	// namespace is the namespace of the operator, and tenant its tenant.
	namespace, tenant string
	// overlay is the name of the folder of the kustomization that is applied.
	overlay string
	// webhook is the port at which the API server calls the admission webhook, and
	// webhookServed whether an operator was started for it.
	webhook       int
	webhookServed bool
}

// Install applies the manifests and writes the configuration and the
// certificates that shard servers and operators share. It starts nothing.
func Install(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Installation, error) {
	client, err := kubernetes.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("install Nstance: %w", err)
	}
	if err := fillInPorts(o.Shards); err != nil {
		return nil, err
	}
	n := &Installation{
		options: o,
		cp:      cp,
		client:  client,
		dir:     filepath.Join(cp.Dir(), "nstance"),

		namespace: Namespace,
		tenant:    Tenant,
		overlay:   Namespace,
	}
	if err := os.RemoveAll(n.dir); err != nil {
		return nil, fmt.Errorf("remove old state: %w", err)
	}
	authority, stored, err := CreateKeys(ctx, n.EncryptionKeyFile(), n.Bucket())
	if err != nil {
		return nil, fmt.Errorf("install Nstance: %w", err)
	}
	n.authority = authority
	if o.Machines != nil {
		if err := stored.Set(ctx, JoinSecret, o.Machines.Kubeconfig); err != nil {
			return nil, fmt.Errorf("install Nstance: %w", err)
		}
	}
	if err := controlplane.FillInPorts([]*int{&n.webhook}); err != nil {
		return nil, fmt.Errorf("install Nstance: %w", err)
	}
	if err := n.applyOperator(ctx, overlay); err != nil {
		return nil, err
	}
	if err := n.installWorkload(ctx); err != nil {
		return nil, err
	}
	return n, n.applyConfiguration(ctx)
}

// InstallSecond installs a second operator, for another tenant of the same shards and in
// another namespace. StartOperator of the result starts it.
func (n *Installation) InstallSecond(ctx context.Context, namespace, tenant string) (*Installation, error) {
	other := *n
	other.namespace, other.tenant, other.overlay = namespace, tenant, namespace
	return &other, other.install(ctx, second)
}

// InstallTarget installs the operator in another management cluster, with the same tenant of the
// same shards: the shards serve it after the tenant was moved there. The Nodes and Pods stay where
// they are. The servers are components of the first control plane.
func (n *Installation) InstallTarget(ctx context.Context, cp *controlplane.ControlPlane) (*Installation, error) {
	other := *n
	other.cp, other.overlay = cp, "target"
	var err error
	if other.client, err = kubernetes.NewForConfig(cp.AdminConfig()); err != nil {
		return nil, fmt.Errorf("install a second operator: %w", err)
	}
	return &other, other.install(ctx, overlay)
}

// install applies the manifests and the configuration of a further operator.
func (n *Installation) install(ctx context.Context, overlay *template.Template) error {
	n.webhook, n.webhookServed = 0, false
	if err := controlplane.FillInPorts([]*int{&n.webhook}); err != nil {
		return fmt.Errorf("install a second operator: %w", err)
	}
	if err := n.applyOperator(ctx, overlay); err != nil {
		return err
	}
	return n.applyConfiguration(ctx)
}

// writeFile writes a file that only its owner may read.
func (n *Installation) writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
