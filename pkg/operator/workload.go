// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller/election"
)

// restoreCheckTimeout bounds how long a new leader waits for the API server of the workload
// cluster.
const restoreCheckTimeout = 5 * time.Second

// errNoWorkloadKubeconfig is the error of each request to a workload cluster without a
// kubeconfig.
var errNoWorkloadKubeconfig = errors.New("no credentials for the cluster of --capi-endpoint: set --workload-kubeconfig")

// workloadConfig returns the configuration of the clients of the cluster with the Nodes,
// nil if the operator runs in that cluster.
//
// The Nodes of an external cluster whose kubeconfig is not set exist, but the operator
// cannot see them. It must not look for them in its own cluster: it would find no Node of
// any instance, and instances would be deleted without a drain. Each request fails instead,
// as if the API server was not reachable.
func workloadConfig(options *Options) (*rest.Config, error) {
	switch {
	case options.WorkloadKubeconfig != "":
		// Files that the kubeconfig names, of tokens and certificates, are read again when
		// they change. Their content must not be loaded here.
		config, err := clientcmd.BuildConfigFromFlags("", options.WorkloadKubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--workload-kubeconfig: %w", err)
		}
		return config, nil
	case options.CAPIEndpoint != "":
		return &rest.Config{Host: options.CAPIEndpoint, Transport: noCredentials{}}, nil
	}
	return nil, nil
}

// noCredentials sends no requests.
type noCredentials struct{}

// RoundTrip implements http.RoundTripper.
func (noCredentials) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, errNoWorkloadKubeconfig
}

// checkWorkloadNotRestored returns an error if the workload cluster was restored from a
// backup that is older than the cache of its Nodes. A cluster that is not reachable does
// not keep the leader from its work: pools are scaled without it.
func checkWorkloadNotRestored(ctx context.Context, clients *clients, informers *informers) error {
	if clients.workloadServer == "" || !informers.Nodes.HasSynced() {
		return nil
	}
	checked, cancel := context.WithTimeout(ctx, restoreCheckTimeout)
	defer cancel()
	err := election.CheckNotRestored(checked, []election.CachedKind{cachedNodes(clients, informers)})
	if err == nil || errors.Is(err, election.ErrRestored) {
		return err
	}
	klog.FromContext(ctx).Error(err, "Workload cluster is not reachable, drains and Pods that request machines wait for it", "server", clients.workloadServer)
	return nil
}
