// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"bytes"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// KubeconfigSource says what goes into the kubeconfig Secret.
type KubeconfigSource struct {
	// Server is the URL of the API server as CAPI's controllers reach it.
	Server string
	// CAData is the PEM bundle that its certificate is verified with.
	CAData []byte
	// ServiceAccount, in the same namespace, is whose token it holds.
	ServiceAccount string
}

// kubeconfig is a kubeconfig file for cluster that logs in with token.
func (s *KubeconfigSource) kubeconfig(cluster, token string) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: s.Server, CertificateAuthorityData: s.CAData}
	config.AuthInfos[s.ServiceAccount] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: s.ServiceAccount}
	config.CurrentContext = cluster
	encoded, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig of cluster %s: %w", cluster, err)
	}
	return encoded, nil
}

// made tells whether a kubeconfig was made from this source. One that was made
// with other settings of the operator is of no use any more.
func (s *KubeconfigSource) made(kubeconfig []byte) bool {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return false
	}
	current, ok := config.Contexts[config.CurrentContext]
	if !ok || current.AuthInfo != s.ServiceAccount {
		return false
	}
	cluster, ok := config.Clusters[current.Cluster]
	return ok && cluster.Server == s.Server && bytes.Equal(cluster.CertificateAuthorityData, s.CAData) &&
		config.AuthInfos[current.AuthInfo] != nil && config.AuthInfos[current.AuthInfo].Token != ""
}
