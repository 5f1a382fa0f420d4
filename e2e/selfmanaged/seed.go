// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// Names of Cluster API's manifests.
const (
	capiNamespace  = "capi-system"
	capiService    = "capi-webhook-service"
	capiCertSecret = "capi-webhook-service-cert"
)

// writeSeed writes what the control plane applies when it is there: Cluster API, the operator as
// manifests/operator has it, and the addresses of the shards.
func (c *Cluster) writeSeed() error {
	capi, err := c.clusterAPI()
	if err != nil {
		return err
	}
	if c.options.WithoutOperator {
		return c.writeObjects("1-cluster-api.yaml", capi)
	}
	operator, err := c.operator()
	if err != nil {
		return err
	}
	shards := &unstructured.Unstructured{Object: object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "nstance-shards", "namespace": installation.Namespace}, "data": c.addresses(),
	}}
	for name, objects := range map[string][]*unstructured.Unstructured{
		"1-cluster-api.yaml": capi, "2-operator.yaml": operator, "3-shards.yaml": {shards},
	} {
		if err := c.writeObjects(name, objects); err != nil {
			return err
		}
	}
	return nil
}

// addresses returns the addresses of the shards for an operator.
func (c *Cluster) addresses() map[string]any {
	addresses := map[string]any{}
	for _, s := range c.shards {
		addresses[s.id] = net.JoinHostPort(c.options.Docker.Bridge, strconv.Itoa(s.operator))
		addresses[s.id+".registration"] = net.JoinHostPort(c.options.Docker.Bridge, strconv.Itoa(s.registration))
	}
	return addresses
}

// writeObjects writes objects into a file of the seed: namespaces and kinds first.
func (c *Cluster) writeObjects(name string, objects []*unstructured.Unstructured) error {
	var text bytes.Buffer
	for _, first := range []bool{true, false} {
		for _, o := range objects {
			if (o.GetKind() == "Namespace" || o.GetKind() == "CustomResourceDefinition") != first {
				continue
			}
			data, err := yaml.Marshal(o.Object)
			if err != nil {
				return fmt.Errorf("encode %s %s: %w", o.GetKind(), o.GetName(), err)
			}
			text.WriteString("---\n")
			text.Write(data)
		}
	}
	return writeFile(filepath.Join(c.seedFolder(), name), text.Bytes())
}

// operator returns the objects of manifests/operator with the image of the nodes.
func (c *Cluster) operator() ([]*unstructured.Unstructured, error) {
	objects, err := controlplane.Render(filepath.Join(c.options.Root, "manifests", "operator"))
	if err != nil {
		return nil, err
	}
	return objects, setImage(objects, "nstance-operator:selfmanaged")
}

// setImage sets the image of the only container of each Deployment.
func setImage(objects []*unstructured.Unstructured, image string) error {
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		path := []string{"spec", "template", "spec", "containers"}
		containers, _, err := unstructured.NestedSlice(o.Object, path...)
		if err != nil {
			return fmt.Errorf("read the containers of Deployment %s: %w", o.GetName(), err)
		}
		if len(containers) != 1 {
			return fmt.Errorf("set the image of Deployment %s: it has %d containers, want one", o.GetName(), len(containers))
		}
		fields, ok := containers[0].(map[string]any)
		if !ok {
			return fmt.Errorf("set the image of Deployment %s: its container is no object", o.GetName())
		}
		fields["image"], fields["imagePullPolicy"] = image, "IfNotPresent"
		if err := unstructured.SetNestedSlice(o.Object, containers, path...); err != nil {
			return fmt.Errorf("set the image of Deployment %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// variables are what clusterctl replaces by their defaults.
var variables = regexp.MustCompile(`\$\{\w+:=([^}]*)\}`)

// clusterAPI returns the objects of Cluster API's core. Its webhooks have a certificate of the CA of this
// cluster instead of cert-manager's. It does not run on the control plane, which could be replaced only if
// Cluster API ran elsewhere.
func (c *Cluster) clusterAPI() ([]*unstructured.Unstructured, error) {
	rendered, err := controlplane.Render(filepath.Join(c.options.CAPIModule, "core", "config", "default"))
	if err != nil {
		return nil, err
	}
	certificate, key, err := c.authority.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: capiService},
		DNSNames:    []string{capiService + "." + capiNamespace + ".svc", capiService + "." + capiNamespace + ".svc.cluster.local"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	encode := base64.StdEncoding.EncodeToString
	objects := []*unstructured.Unstructured{{Object: object{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
		"metadata": object{"name": capiCertSecret, "namespace": capiNamespace},
		"data":     object{"tls.crt": encode(certificate), "tls.key": encode(key)},
	}}}
	for _, o := range rendered {
		if strings.HasPrefix(o.GetAPIVersion(), "cert-manager.io/") {
			continue
		}
		data, err := o.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("encode %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		adapted := &unstructured.Unstructured{}
		if err := adapted.UnmarshalJSON(variables.ReplaceAll(data, []byte("$1"))); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		setAuthority(adapted.Object, encode(c.authority.certificatePEM()))
		if adapted.GetKind() == "Deployment" {
			unstructured.RemoveNestedField(adapted.Object, "spec", "template", "spec", "tolerations")
		}
		objects = append(objects, adapted)
	}
	version := filepath.Base(c.options.CAPIModule)
	_, version, _ = strings.Cut(version, "@")
	return objects, setImage(objects, "localhost/cluster-api:"+version)
}

// setAuthority sets caBundle of each client configuration of a webhook, also of a conversion.
func setAuthority(value any, bundle string) {
	switch value := value.(type) {
	case map[string]any:
		if configuration, ok := value["clientConfig"].(map[string]any); ok && configuration["service"] != nil {
			configuration["caBundle"] = bundle
		}
		for _, below := range value {
			setAuthority(below, bundle)
		}
	case []any:
		for _, below := range value {
			setAuthority(below, bundle)
		}
	}
}

// kubernetesVersion returns the version of command kube.
func kubernetesVersion(ctx context.Context, kube string) (string, error) {
	output, err := exec.CommandContext(ctx, kube, "kubectl", "version", "--client", "-o", "json").Output()
	if err != nil {
		return "", fmt.Errorf("read the version of %s: %w", kube, err)
	}
	var version struct {
		ClientVersion struct {
			GitVersion string `json:"gitVersion"`
		} `json:"clientVersion"`
	}
	if err := yaml.Unmarshal(output, &version); err != nil {
		return "", fmt.Errorf("read the version of %s: %w", kube, err)
	}
	return version.ClientVersion.GitVersion, nil
}
