// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/daemon"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// leaseName is the name of the Lease of the leader.
const leaseName = "nstance-operator-leader-election"

// clients are the clients of the API servers, one for each family of kinds. They send no
// changes while this process does not hold the lease.
type clients struct {
	lease   *election.Lease
	kube    kubernetes.Interface
	nstance versioned.Interface
	capi    *capi.Client
	// workload are the clients of the cluster with the Nodes. workloadServer is its API
	// server, empty if all clients use the same cluster.
	workload       controllers.Workload
	workloadServer string
	// metrics decides who may read the metrics. It has no guard: reviews change nothing, and
	// standbys send them too.
	metrics *daemon.Access
	// ca verifies the API server's certificate, PEM.
	ca []byte
}

func newClients(options *Options) (*clients, error) {
	config, err := daemon.APIServer(options.Kubeconfig)
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

// addWorkload makes the clients of the workload cluster, which has the Nodes. ours is the
// configuration of the clients of the operator's cluster.
func (c *clients) addWorkload(options *Options, ours *rest.Config) error {
	external, err := workloadConfig(options)
	if err != nil {
		return err
	}
	if external == nil {
		// The operator's cluster is the workload cluster.
		c.workload.Kube = c.kube
		c.workload.Metadata, err = newMetadata(ours)
		return err
	}
	adjust(external)
	external.Wrap(c.lease.Guard)
	c.workloadServer = external.Host
	if c.workload.Kube, err = newKube(external); err != nil {
		return fmt.Errorf("workload cluster: %w", err)
	}
	c.workload.Metadata, err = newMetadata(external)
	return err
}

// adjust sets the options that all configurations share.
func adjust(config *rest.Config) {
	// Requests are limited by API Priority and Fairness
	// (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/), not by the
	// client.
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

func newMetadata(config *rest.Config) (metadata.Interface, error) {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for metadata: %w", err)
	}
	return client, nil
}

// restoreCheckTimeout bounds how long a new leader waits for the API server of the workload
// cluster.
const restoreCheckTimeout = 5 * time.Second

// errNoWorkloadKubeconfig: a request to a workload cluster failed because no kubeconfig is
// set.
var errNoWorkloadKubeconfig = errors.New("no credentials for the cluster of --capi-endpoint: set --workload-kubeconfig")

// workloadConfig returns the configuration of the clients of the cluster with the Nodes, nil
// if the operator runs in that cluster.
//
// If the kubeconfig of an external cluster is not set, its Nodes exist, but the operator
// cannot see them. It must not look for them in its own cluster: it would find no Node of any
// instance, and instances would be deleted without a drain. Each request fails instead, as if
// the API server was not reachable.
func workloadConfig(options *Options) (*rest.Config, error) {
	switch {
	case options.WorkloadKubeconfig != "":
		// client-go reads the token and certificate files that the kubeconfig names again when
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

// noCredentials is a transport that fails each request.
type noCredentials struct{}

// RoundTrip implements http.RoundTripper.
func (noCredentials) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return nil, errNoWorkloadKubeconfig
}

// checkWorkloadNotRestored returns an error if the workload cluster was restored from a backup
// that is older than the cache of its Nodes. If the cluster is not reachable, it returns nil:
// the leader scales pools without it.
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

// readRetryDelay is the delay before the UID is read again.
const readRetryDelay = 2 * time.Second

// kubernetesCluster returns the UID of the Kubernetes cluster that the operator runs in: the
// UID of the namespace kube-system, which exists as long as the cluster
// (https://opentelemetry.io/docs/specs/semconv/resource/k8s/). Reading is retried until it
// succeeds. Without permission to read the namespace, kubernetesCluster fails at once: the
// shards could not distinguish this operator from an operator of another cluster.
func kubernetesCluster(ctx context.Context, client kubernetes.Interface) (uid string, err error) {
	err = wait.PollUntilContextCancel(ctx, readRetryDelay, true, func(ctx context.Context) (bool, error) {
		namespace, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		switch {
		case err == nil:
			uid = string(namespace.UID)
			return true, nil
		case apierrors.IsForbidden(err):
			return false, err
		}
		klog.FromContext(ctx).Error(err, "The UID of the namespace kube-system could not be read, will retry")
		return false, nil
	})
	if err != nil {
		return "", fmt.Errorf("read the UID of the namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return uid, nil
}

// newRecorder returns a recorder that writes each event to the cluster of its object.
func newRecorder(ctx context.Context, clients *clients) (events.EventRecorder, error) {
	ours, err := controller.NewRecorder(ctx, clients.kube, controllers.FieldManager, addToScheme)
	if err != nil || clients.workloadServer == "" {
		return ours, err
	}
	workload, err := controller.NewRecorder(ctx, clients.workload.Kube, controllers.FieldManager, addToScheme)
	if err != nil {
		return nil, err
	}
	return &eventRouter{EventRecorder: ours, workload: workload}, nil
}

// addToScheme adds the kinds of CRDs about which events are recorded: objects that typed
// clients return do not contain their kind.
func addToScheme(scheme *runtime.Scheme) error {
	return errors.Join(v1beta1.AddToScheme(scheme), clusterv1.AddToScheme(scheme))
}

// eventRouter records events about Nodes and Pods in the workload cluster, and all other
// events in the cluster of our objects.
type eventRouter struct {
	events.EventRecorder
	workload events.EventRecorder
}

// Eventf implements events.EventRecorder.
func (r *eventRouter) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	switch regarding.(type) {
	// Only Pods are read as metadata without spec.
	case *corev1.Node, *corev1.Pod, *metav1.PartialObjectMetadata:
		r.workload.Eventf(regarding, related, eventtype, reason, action, note, args...)
	default:
		r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
	}
}
