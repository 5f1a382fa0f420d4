// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package daemon

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// APIServer returns the configuration of clients of the API server, from a kubeconfig file, or if its
// path is empty from the account of the Pod.
//
// clientcmd.BuildConfigFromFlags would warn of an empty path at each start of a Pod, and report the
// missing account of a Pod as a mistake in a kubeconfig.
func APIServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig is not set, and the account of the Pod cannot be used: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return config, nil
}
