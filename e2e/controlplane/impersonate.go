// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import "k8s.io/client-go/tools/clientcmd"

// Impersonate writes a copy of a kubeconfig with the rights of another user alone, and returns
// its path.
func Impersonate(from, to, user string) (string, error) {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return "", err
	}
	for _, info := range config.AuthInfos {
		info.Impersonate = user
	}
	return to, clientcmd.WriteToFile(*config, to)
}
