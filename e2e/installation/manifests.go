// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/e2e/controlplane"
)

// fieldManager is the field manager of what an administrator would apply.
const fieldManager = "devcluster"

// bases are the manifests that an installation outside of the cluster needs:
// all but the operator's Deployment.
var bases = []string{"crd", "rbac", "capi-workload"}

func (n *Installation) applyBases(ctx context.Context) error {
	namespace := corev1.Namespace(Namespace)
	_, err := n.client.CoreV1().Namespaces().Apply(ctx, namespace, applyOptions())
	if err != nil {
		return fmt.Errorf("apply Namespace %s: %w", Namespace, err)
	}
	for _, base := range bases {
		if err := n.Apply(ctx, filepath.Join(n.options.Manifests, base)); err != nil {
			return err
		}
	}
	return nil
}

// Apply builds a kustomization and applies it as the administrator.
func (n *Installation) Apply(ctx context.Context, dir string) error {
	objects, err := controlplane.Render(dir)
	if err != nil {
		return err
	}
	return controlplane.Apply(ctx, n.cp.AdminConfig(), fieldManager, objects)
}

// applyConfiguration writes the operator's configuration: the addresses of the shards,
// the certificate authority, and the nonce with which it registers.
func (n *Installation) applyConfiguration(ctx context.Context) error {
	shards := map[string]string{}
	for _, shard := range n.options.Shards {
		shards[shard.ID] = address(shard.OperatorPort)
		shards[shard.ID+".registration"] = address(shard.RegistrationPort)
	}
	ca, err := n.Admin(ctx, "cluster", "ca")
	if err != nil {
		return err
	}
	for _, configMap := range []*corev1.ConfigMapApplyConfiguration{
		corev1.ConfigMap("nstance-shards", Namespace).WithData(shards),
		corev1.ConfigMap("nstance-cluster-ca", Namespace).WithData(map[string]string{
			"ca.crt": ca,
		}),
	} {
		if _, err := n.client.CoreV1().ConfigMaps(Namespace).Apply(ctx, configMap, applyOptions()); err != nil {
			return fmt.Errorf("apply ConfigMap %s: %w", *configMap.Name, err)
		}
	}
	return n.ApplyNonce(ctx)
}

// ApplyNonce gives the operator a new nonce to register with.
func (n *Installation) ApplyNonce(ctx context.Context) error {
	nonce, err := n.Admin(ctx, "cluster", "nonce", "--tenant", Tenant)
	if err != nil {
		return err
	}
	secret := corev1.Secret("nstance-operator-nonce", Namespace).WithData(map[string][]byte{"nonce.jwt": []byte(nonce)})
	if _, err := n.client.CoreV1().Secrets(Namespace).Apply(ctx, secret, applyOptions()); err != nil {
		return fmt.Errorf("apply Secret %s: %w", *secret.Name, err)
	}
	return nil
}

func applyOptions() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
}
