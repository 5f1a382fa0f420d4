// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// mastersGroup may do everything, by the API server's own rule.
const mastersGroup = "system:masters"

// Kubeconfig writes a kubeconfig file for a user with administrator rights
// and returns its path. The name identifies the user in the audit log.
func (cp *ControlPlane) Kubeconfig(user string) (string, error) {
	return cp.kubeconfigFor(user, mastersGroup)
}

// KubeconfigWithToken writes a kubeconfig file for the holder of a bearer
// token, for instance of a ServiceAccount, and returns its path.
func (cp *ControlPlane) KubeconfigWithToken(name, token string) (string, error) {
	return cp.KubeconfigThrough(cp.Server(), name, token)
}

// KubeconfigThrough is KubeconfigWithToken with another URL of the API server. The
// server at that URL needs a certificate of ServingCertificate.
func (cp *ControlPlane) KubeconfigThrough(server, name, token string) (string, error) {
	return cp.writeKubeconfig(cp.kubeconfigFile(name), server, name, "", &clientcmdapi.AuthInfo{Token: token})
}

// kubeconfigFor writes a kubeconfig file with a client certificate.
func (cp *ControlPlane) kubeconfigFor(user string, groups ...string) (string, error) {
	info, err := cp.certificateLogin(user, groups...)
	if err != nil {
		return "", err
	}
	return cp.writeKubeconfig(cp.kubeconfigFile(user), cp.Server(), user, "", info)
}

func (cp *ControlPlane) writeAdminKubeconfig(namespace string) error {
	const user = "admin"
	info, err := cp.certificateLogin(user, mastersGroup)
	if err != nil {
		return err
	}
	_, err = cp.writeKubeconfig(cp.KubeconfigPath(), cp.Server(), user, namespace, info)
	return err
}

func (cp *ControlPlane) certificateLogin(user string, groups ...string) (*clientcmdapi.AuthInfo, error) {
	certPEM, keyPEM, err := cp.authority.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}, nil
}

func (cp *ControlPlane) kubeconfigFile(user string) string {
	return filepath.Join(cp.dir, "kubeconfigs", user)
}

func (cp *ControlPlane) writeKubeconfig(path, server, user, namespace string, info *clientcmdapi.AuthInfo) (string, error) {
	const name = "devcluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   server,
		CertificateAuthorityData: cp.authority.caPEM(),
	}
	config.AuthInfos[user] = info
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user, Namespace: namespace}
	config.CurrentContext = name
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}
