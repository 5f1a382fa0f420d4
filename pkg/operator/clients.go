// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller/daemon"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// leaseName is the name of the Lease of the leader.
const leaseName = "nstance-operator-leader-election"

// clients reach the API servers, one for each family of kinds. They change nothing
// without the lease.
type clients struct {
	lease   *election.Lease
	kube    kubernetes.Interface
	nstance versioned.Interface
	capi    *capi.Client
	// workload are the clients of the cluster with the Nodes, and workloadServer is its
	// API server; empty if it is the cluster of all other clients.
	workload       controllers.Workload
	workloadServer string
	// metrics decides who may read the metrics. Reviews change nothing, and standbys
	// make them too.
	metrics *daemon.Access
	// ca verifies the API server's certificate, PEM.
	ca []byte
}

func newClients(options *Options) (*clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", options.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load the configuration for the API server: %w", err)
	}
	adjust(config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("load the TLS files for the API server: %w", err)
	}

	made := &clients{ca: config.CAData}
	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for the lease: %w", err)
	}
	if made.lease, err = election.New(leases, options.Namespace, leaseName, options.Timing); err != nil {
		return nil, err
	}
	reviews, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for access reviews: %w", err)
	}
	made.metrics = daemon.NewAccess(reviews.AuthenticationV1(), reviews.AuthorizationV1())
	config.Wrap(made.lease.Guard)
	if made.kube, err = newKube(config); err != nil {
		return nil, err
	}
	if made.nstance, err = versioned.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make the client for our kinds: %w", err)
	}
	if made.capi, err = capi.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make the client for Cluster API's kinds: %w", err)
	}
	return made, made.addWorkload(options, config)
}

// addWorkload makes the clients of the cluster with the Nodes. config is the configuration
// of all other clients.
func (c *clients) addWorkload(options *Options, config *rest.Config) error {
	external, err := workloadConfig(options)
	if err != nil {
		return err
	}
	c.workload.Kube = c.kube
	if external != nil {
		adjust(external)
		external.Wrap(c.lease.Guard)
		config, c.workloadServer = external, external.Host
		if c.workload.Kube, err = newKube(config); err != nil {
			return fmt.Errorf("workload cluster: %w", err)
		}
	}
	if c.workload.Metadata, err = metadata.NewForConfig(config); err != nil {
		return fmt.Errorf("make the client for metadata: %w", err)
	}
	return nil
}

// adjust sets what the configurations of all clients have in common.
func adjust(config *rest.Config) {
	// The API server's priority and fairness decides, not a limit of our own.
	config.QPS = -1
	rest.AddUserAgent(config, controllers.FieldManager)
}

func newKube(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for built-in kinds: %w", err)
	}
	return client, nil
}
