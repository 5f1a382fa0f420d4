// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// nodes configures a control plane for kubelets. Nil means that no kubelet runs.
type nodes struct {
	address             net.IP
	tokenID, tokenValue string
	// podNetwork has the ranges of the Pods of all Nodes.
	podNetwork string
}

// newNodes returns the configuration for kubelets that reach this machine at an address.
func newNodes(address, podNetwork string) (*nodes, error) {
	n := &nodes{address: net.ParseIP(address), podNetwork: podNetwork}
	if n.address == nil {
		return nil, fmt.Errorf("the address for kubelets is %q, needs to be an IP address", address)
	}
	random := make([]byte, 11)
	if _, err := rand.Read(random); err != nil {
		return nil, fmt.Errorf("make a bootstrap token: %w", err)
	}
	token := hex.EncodeToString(random)
	n.tokenID, n.tokenValue = token[:6], token[6:]
	return n, nil
}

// addresses returns the addresses at which kubelets and Pods reach the API server.
func (n *nodes) addresses() []net.IP {
	if n == nil {
		return nil
	}
	return []net.IP{n.address}
}

func (n *nodes) apiServerFlags(a *authority) ([]string, error) {
	if n == nil {
		return nil, nil
	}
	certPEM, keyPEM, err := a.client("kube-apiserver-kubelet-client", mastersGroup)
	if err != nil {
		return nil, err
	}
	cert, key := filepath.Join(a.dir, "kubelet-client.crt"), filepath.Join(a.dir, "kubelet-client.key")
	if err := replaceFile(cert, certPEM); err != nil {
		return nil, err
	}
	if err := replaceFile(key, keyPEM); err != nil {
		return nil, err
	}
	return []string{
		"--bind-address=0.0.0.0",
		"--enable-bootstrap-token-auth",
		"--enable-admission-plugins=NodeRestriction",
		// Kubelets sign their serving certificates themselves.
		"--kubelet-client-certificate=" + cert,
		"--kubelet-client-key=" + key,
		"--kubelet-preferred-address-types=InternalIP",
	}, nil
}

func (n *nodes) controllerManagerFlags(a *authority) ([]string, error) {
	if n == nil {
		return nil, nil
	}
	keyPEM, err := privateKeyPEM(a.key)
	if err != nil {
		return nil, err
	}
	key := filepath.Join(a.dir, "ca.key")
	if err := replaceFile(key, keyPEM); err != nil {
		return nil, err
	}
	return []string{
		"--cluster-signing-cert-file=" + a.caFile(),
		"--cluster-signing-key-file=" + key,
		"--allocate-node-cidrs",
		"--cluster-cidr=" + n.podNetwork,
		"--node-cidr-mask-size=24",
	}, nil
}

//go:embed nodes.yaml
var nodesManifest string

// allowNodes lets kubelets join with the bootstrap token: they request a client certificate, which
// the controller manager approves and signs
// (https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/).
func (cp *ControlPlane) allowNodes(ctx context.Context) error {
	objects, err := parseObjects(nodesManifest)
	if err != nil {
		return fmt.Errorf("read the rights of kubelets: %w", err)
	}
	token := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]any{"namespace": "kube-system", "name": "bootstrap-token-" + cp.nodes.tokenID},
		"stringData": map[string]any{
			"token-id": cp.nodes.tokenID, "token-secret": cp.nodes.tokenValue,
			"usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:nodes",
		},
	}}
	return Apply(ctx, cp.AdminConfig(), "devcluster", append(objects, token))
}

// BootstrapKubeconfig returns the kubeconfig with which a kubelet joins, JSON.
func (cp *ControlPlane) BootstrapKubeconfig() ([]byte, error) {
	server := "https://" + net.JoinHostPort(cp.nodes.address.String(), strconv.Itoa(cp.ports.APIServer))
	path, err := cp.writeKubeconfig(cp.kubeconfigFile("kubelet-bootstrap"), server, "kubelet-bootstrap", "",
		&clientcmdapi.AuthInfo{Token: cp.nodes.tokenID + "." + cp.nodes.tokenValue})
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text)
}

// CA is the certificate of the cluster's authority, PEM.
func (cp *ControlPlane) CA() []byte { return cp.authority.caPEM() }

// parseObjects reads objects of a YAML list.
func parseObjects(text string) ([]*unstructured.Unstructured, error) {
	var list []map[string]any
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, len(list))
	for i, object := range list {
		objects[i] = &unstructured.Unstructured{Object: object}
	}
	return objects, nil
}
