// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cluster creates the objects by which Cluster API knows the cluster of its
// MachinePools: an NstanceCluster, a Cluster that refers to it, and a Secret with the
// kubeconfig with which Cluster API reaches the Nodes (docs/capi.md#cluster).
package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/listers"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// Options are the settings that only this controller has.
type Options struct {
	// Endpoint is the API server that the NstanceCluster publishes.
	Endpoint v1beta1.APIEndpoint
	// Kubeconfig is the source of the kubeconfig Secret. It is nil if an administrator
	// maintains the Secret.
	Kubeconfig *KubeconfigSource
	// Identity is the operator's certificate: the source of the condition IdentityReady.
	Identity ConditionSource
	// Workload is the source of the condition WorkloadClusterReachable; nil if the operator
	// runs in the cluster of the Nodes.
	Workload ConditionSource
}

// ConditionSource reports a state that becomes a condition of the NstanceCluster.
type ConditionSource interface {
	// State returns status, reason and message. The status is empty while it is not known.
	State() metav1.Condition
	// AddHandler registers handler, which is called when the state changed.
	AddHandler(handler func())
}

// Controller syncs the only NstanceCluster.
type Controller struct {
	controller.Registrations
	options         Options
	namespace, name string

	nstanceClusters      clientset.NstanceClusterInterface
	clusters             *capi.ClusterClient
	secrets              corev1client.SecretInterface
	serviceAccounts      corev1client.ServiceAccountInterface
	tokenReviews         authenticationclient.TokenReviewInterface
	nstanceClusterLister nstancelisters.NstanceClusterNamespaceLister
	clusterLister        listers.ResourceIndexer[*clusterv1.Cluster]
	secretLister         corev1listers.SecretNamespaceLister

	shards       shard.Set
	recorder     events.EventRecorder
	clock        clock.PassiveClock
	queue        *controller.Queue[cache.ObjectName]
	writes       *controller.WriteTracker
	secretWrites *controller.WriteTracker
	// token describes the token in the Secret; nil before the first sync, or if the
	// Secret has no usable token. Only the one worker uses it.
	token *token
}

// New returns a controller that has registered its handlers. d.Informers.Kubeconfig must watch
// the Secret SecretName.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	nstanceClusters := d.Informers.Nstance.NstanceClusters()
	secrets := d.Informers.Kubeconfig
	c := &Controller{
		options:              o,
		namespace:            d.Namespace,
		name:                 d.ClusterName,
		nstanceClusters:      d.Nstance.NstanceClusters(d.Namespace),
		clusters:             d.CAPI.Clusters(d.Namespace),
		secrets:              d.Kube.CoreV1().Secrets(d.Namespace),
		serviceAccounts:      d.Kube.CoreV1().ServiceAccounts(d.Namespace),
		tokenReviews:         d.Kube.AuthenticationV1().TokenReviews(),
		nstanceClusterLister: nstanceClusters.Lister().NstanceClusters(d.Namespace),
		clusterLister:        d.Informers.Clusters.Lister(),
		secretLister:         corev1listers.NewSecretLister(secrets.GetIndexer()).Secrets(d.Namespace),
		shards:               d.NamedShards,
		recorder:             d.Recorder,
		clock:                d.Clock,
		writes:               controller.NewWriteTracker(nstanceClusters.Informer().GetStore()),
		secretWrites:         controller.NewWriteTracker(secrets.GetStore()),
	}
	c.queue = controller.NewQueue("cluster", c.sync)

	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "NstanceClusters", Informer: nstanceClusters.Informer(),
			Handler: controller.OnChange(func(_, _ *v1beta1.NstanceCluster) { c.enqueue() })},
		controller.Watched{What: "Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "Secret " + SecretName(c.name), Informer: secrets,
			Handler: controller.OnChange(func(_, _ *corev1.Secret) { c.enqueue() })},
	)
	if err != nil {
		return nil, err
	}
	d.NamedShards.AddHandler(func(string) { c.enqueue() })
	o.Identity.AddHandler(c.enqueue)
	if o.Workload != nil {
		o.Workload.AddHandler(c.enqueue)
	}
	// While no objects exist, no event arrives.
	c.enqueue()
	return c, nil
}

// Run syncs the cluster until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, 1) }

// clusterChanged enqueues the cluster when the Cluster was created or deleted, and
// when it was paused or unpaused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before == nil || after == nil || controllers.PausedBy(before) != controllers.PausedBy(after) {
		c.enqueue()
	}
}

func (c *Controller) enqueue() { c.queue.Add(c.key()) }

// key returns the key of the NstanceCluster, the only key in the queue.
func (c *Controller) key() cache.ObjectName { return cache.NewObjectName(c.namespace, c.name) }

func (c *Controller) secretKey() cache.ObjectName {
	return cache.NewObjectName(c.namespace, SecretName(c.name))
}
