// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/server/registration"
)

// fieldManager is the field manager of the objects that an administrator would apply.
const fieldManager = "devcluster"

//go:embed overlay/kustomization.yaml
var overlayText string

//go:embed second/kustomization.yaml
var secondText string

var (
	// overlay is the kustomization that is applied: the manifests of the operator, changed for a
	// machine without a kubelet.
	overlay = parse(overlayText)
	// second is the kustomization of a second operator of the cluster.
	second = parse(secondText)
)

func parse(text string) *template.Template {
	return template.Must(template.New("overlay").Option("missingkey=error").Parse(text))
}

// applyOperator applies the manifests of the operator as an administrator does, with an
// overlay.
func (n *Installation) applyOperator(ctx context.Context, overlay *template.Template) error {
	dir := n.Overlay()
	// A kustomization refers to its bases by relative paths only.
	base := "operator"
	if n.options.Workload != nil {
		base = "external"
	}
	operator, err := filepath.Rel(dir, filepath.Join(n.options.Manifests, base))
	if err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	settings := filepath.Join(filepath.Dir(operator), "settings")
	var text bytes.Buffer
	if err := overlay.Execute(&text, map[string]string{
		"Operator": operator, "Settings": settings, "Webhook": webhookURL(n.webhook),
		"Namespace": n.namespace, "ClusterID": ClusterID, "Tenant": n.tenant,
	}); err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	if err := n.writeFile(filepath.Join(dir, "kustomization.yaml"), text.Bytes()); err != nil {
		return fmt.Errorf("write the overlay: %w", err)
	}
	return n.Apply(ctx, dir)
}

// Overlay is the folder of the kustomization that is applied.
func (n *Installation) Overlay() string { return filepath.Join(n.dir, "overlay", n.overlay) }

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
		shards[shard.ID+".registration"] = n.machineAddress(shard.RegistrationPort)
	}
	keys, err := n.readKeys(ctx)
	if err != nil {
		return err
	}
	for _, configMap := range []*corev1.ConfigMapApplyConfiguration{
		corev1.ConfigMap("nstance-shards", n.namespace).WithData(shards),
		corev1.ConfigMap("nstance-cluster-ca", n.namespace).WithData(map[string]string{
			"ca.crt": string(keys.Authority.CertificatePEM()),
		}),
	} {
		if _, err := n.client.CoreV1().ConfigMaps(n.namespace).Apply(ctx, configMap, applyOptions()); err != nil {
			return fmt.Errorf("apply ConfigMap %s: %w", *configMap.Name, err)
		}
	}
	token, err := registration.NewNonceSigner(keys.Nonce).Operator(registration.OperatorNonce{
		ClusterID: ClusterID,
		Tenant:    n.tenant,
		Lifetime:  registration.DefaultNonceLifetime,
	})
	if err != nil {
		return err
	}
	return n.ApplyNonce(ctx, token)
}

// ApplyNonce gives the operator a new nonce to register with.
func (n *Installation) ApplyNonce(ctx context.Context, token string) error {
	secret := corev1.Secret("nstance-operator-nonce", n.namespace).WithData(map[string][]byte{"nonce.jwt": []byte(token)})
	if _, err := n.client.CoreV1().Secrets(n.namespace).Apply(ctx, secret, applyOptions()); err != nil {
		return fmt.Errorf("apply Secret %s: %w", *secret.Name, err)
	}
	return nil
}

func applyOptions() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
}

// WriteCoreProvider makes the folder of a release a repository for clusterctl, of which it returns the
// configuration: it adds a core provider without components, because Cluster API, whose source is in the
// folder module, runs already.
func WriteCoreProvider(release, module string) (configuration string, err error) {
	_, version, _ := strings.Cut(filepath.Base(module), "@")
	core := filepath.Join(release, "cluster-api", version)
	metadata, err := os.ReadFile(filepath.Join(module, "metadata.yaml"))
	if err != nil {
		return "", fmt.Errorf("read the metadata of Cluster API: %w", err)
	}
	configuration = filepath.Join(release, "clusterctl.yaml")
	for path, data := range map[string][]byte{
		filepath.Join(core, "metadata.yaml"):        metadata,
		filepath.Join(core, "core-components.yaml"): []byte("{apiVersion: v1, kind: Namespace, metadata: {name: capi-system}}"),
		configuration: fmt.Appendf(nil, `
overridesFolder: %[1]s/overrides
providers:
  - name: nstance
    type: InfrastructureProvider
    url: %[1]s/infrastructure-nstance/latest/infrastructure-components.yaml
  - name: cluster-api
    type: CoreProvider
    url: %[1]s/cluster-api/latest/core-components.yaml
`, release),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", fmt.Errorf("write a repository of clusterctl: %w", err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return "", fmt.Errorf("write a repository of clusterctl: %w", err)
		}
	}
	return configuration, nil
}
