// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwoktest

import (
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// Name is the name of the provider in the configuration.
const Name = kwok.Name

// Providers returns a registry of the kwok provider. Its Nodes are in the cluster
// of client, and the kubeconfig is not read. Without a client there is no provider.
func Providers(client kubernetes.Interface) provider.Registry {
	return provider.Registry{Name: func(o *jsonc.Object) provider.Options {
		options := kwok.ReadOptions(o)
		if client != nil {
			options.(*kwok.Options).Client = Nodes(client)
		}
		return options
	}}
}

// Nodes returns the calls for the Nodes of a clientset in memory.
func Nodes(client kubernetes.Interface) kwok.NodeClient { return nodes{client.CoreV1().Nodes()} }

type nodes struct{ kwok.NodeClient }

// IsWatchListSemanticsUnSupported makes informers list: the watches of a clientset in memory
// do not begin with a list.
func (nodes) IsWatchListSemanticsUnSupported() bool { return true }
