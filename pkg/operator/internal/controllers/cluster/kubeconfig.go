// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"bytes"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// KubeconfigSource is what a kubeconfig is generated from.
type KubeconfigSource struct {
	// Server is the URL of the API server for the controllers of Cluster API.
	Server string
	// CAData is the PEM bundle that verifies the certificate of the API server.
	CAData []byte
	// ServiceAccount is the ServiceAccount of the token, in the namespace of the cluster.
	ServiceAccount string
}

// generate returns a kubeconfig file for cluster that authenticates with token.
func (s *KubeconfigSource) generate(cluster, token string) ([]byte, error) {
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

// generated reports whether a kubeconfig was generated from this source. After a
// change of the operator's settings it has to be generated again.
func (s *KubeconfigSource) generated(kubeconfig []byte) bool {
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
