// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
)

// CAPIAccount is the ServiceAccount with which Cluster API reaches the Nodes.
const CAPIAccount = "nstance-capi-workload"

// nodes is the control plane of the Nodes.
func (n *Installation) nodes() *controlplane.ControlPlane {
	if n.options.Workload != nil {
		return n.options.Workload
	}
	return n.cp
}

// installWorkload installs the manifests of a workload cluster whose operator runs in another
// cluster, and gives Cluster API its kubeconfig.
func (n *Installation) installWorkload(ctx context.Context) error {
	workload := n.options.Workload
	if workload == nil {
		return nil
	}
	objects, err := controlplane.Render(filepath.Join(n.options.Manifests, "workload"))
	if err != nil {
		return err
	}
	if err := controlplane.Apply(ctx, workload.AdminConfig(), fieldManager, objects); err != nil {
		return err
	}
	path, err := n.workloadKubeconfig(ctx, CAPIAccount, CAPIAccount)
	if err != nil {
		return err
	}
	kubeconfig, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the kubeconfig for Cluster API: %w", err)
	}
	secret := corev1.Secret(ClusterName+"-kubeconfig", n.namespace).
		WithType(clusterv1.ClusterSecretType).
		WithLabels(map[string]string{clusterv1.ClusterNameLabel: ClusterName}).
		WithData(map[string][]byte{"value": kubeconfig})
	if _, err := n.client.CoreV1().Secrets(n.namespace).Apply(ctx, secret, applyOptions()); err != nil {
		return fmt.Errorf("apply Secret %s: %w", *secret.Name, err)
	}
	return nil
}

// workloadFlags are the flags of an operator that runs in another cluster than the Nodes.
func (n *Installation) workloadFlags(ctx context.Context, component string) ([]string, error) {
	if n.options.Workload == nil {
		return nil, nil
	}
	kubeconfig, err := n.workloadKubeconfig(ctx, component, serviceAccount)
	if err != nil {
		return nil, err
	}
	return []string{"--capi-endpoint", n.options.Workload.Server(), "--workload-kubeconfig", kubeconfig}, nil
}

// workloadKubeconfig writes a kubeconfig file of a ServiceAccount of the workload cluster,
// and returns its path.
func (n *Installation) workloadKubeconfig(ctx context.Context, name, account string) (string, error) {
	client, err := kubernetes.NewForConfig(n.options.Workload.AdminConfig())
	if err != nil {
		return "", fmt.Errorf("make the client of the workload cluster: %w", err)
	}
	token, err := requestToken(ctx, client, n.namespace, account)
	if err != nil {
		return "", err
	}
	return n.options.Workload.KubeconfigWithToken(name, token)
}
