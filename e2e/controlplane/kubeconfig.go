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
// and returns its path. The name tells the user apart in the audit log.
func (cp *ControlPlane) Kubeconfig(user string) (string, error) {
	return cp.kubeconfigFor(user, mastersGroup)
}

// KubeconfigWithToken writes a kubeconfig file for the holder of a bearer
// token, for instance of a ServiceAccount, and returns its path.
func (cp *ControlPlane) KubeconfigWithToken(name, token string) (string, error) {
	path := filepath.Join(cp.dir, "kubeconfigs", name)
	return path, cp.writeKubeconfig(path, name, &clientcmdapi.AuthInfo{Token: token})
}

// kubeconfigFor writes a kubeconfig file with a client certificate.
func (cp *ControlPlane) kubeconfigFor(user string, groups ...string) (string, error) {
	path := filepath.Join(cp.dir, "kubeconfigs", user)
	return path, cp.writeKubeconfigFor(path, user, groups...)
}

func (cp *ControlPlane) writeKubeconfigFor(path, user string, groups ...string) error {
	certPEM, keyPEM, err := cp.authority.client(user, groups...)
	if err != nil {
		return err
	}
	return cp.writeKubeconfig(path, user, &clientcmdapi.AuthInfo{
		ClientCertificateData: certPEM,
		ClientKeyData:         keyPEM,
	})
}

func (cp *ControlPlane) writeKubeconfig(path, user string, info *clientcmdapi.AuthInfo) error {
	const name = "devcluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   cp.Server(),
		CertificateAuthorityData: cp.authority.caPEM(),
	}
	config.AuthInfos[user] = info
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	config.CurrentContext = name
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return nil
}
