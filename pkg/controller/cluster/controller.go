// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cluster gives Cluster API the cluster that its MachinePools belong to:
// an NstanceCluster, a Cluster that refers to it, and a kubeconfig Secret with
// which CAPI's controllers reach the cluster's Nodes.
package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/listers"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
)

// Config says which cluster the objects stand for.
type Config struct {
	// Namespace is where the objects are.
	Namespace string
	// Name is the name of the NstanceCluster and of the Cluster.
	Name string
	// Endpoint is the API server that the NstanceCluster publishes.
	Endpoint v1beta1.APIEndpoint
	// Kubeconfig is how the kubeconfig Secret is made; nil when it is the
	// administrator's to keep.
	Kubeconfig *KubeconfigSource
}

// Controller is the controller of the one NstanceCluster.
type Controller struct {
	config          Config
	nstanceClusters clientset.NstanceClusterInterface
	clusters        *capi.ClusterClient
	secrets         corev1client.SecretInterface
	accounts        corev1client.ServiceAccountInterface
	lister          nstancelisters.NstanceClusterNamespaceLister
	clusterLister   listers.ResourceIndexer[*clusterv1.Cluster]
	secretLister    corev1listers.SecretNamespaceLister
	clock           clock.PassiveClock
	queue           *controller.Queue[cache.ObjectName]
	writes          *controller.Writes
	secretWrites    *controller.Writes
	// token is what is known of the one in the Secret, nil before the first look.
	// The one worker alone uses it.
	token *token
}

// New makes the controller and registers its handlers, whose registrations are
// returned for waiting until they have seen every object. Of the informer
// secrets it uses the one Secret of SecretName.
func New(
	config Config,
	client clientset.InfrastructureV1beta1Interface,
	capiClient *capi.Client,
	kube kubernetes.Interface,
	nstanceClusters informers.NstanceClusterInformer,
	clusters *capi.Informer[*clusterv1.Cluster],
	secrets cache.SharedIndexInformer,
	clock clock.PassiveClock,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	c := &Controller{
		config:          config,
		nstanceClusters: client.NstanceClusters(config.Namespace),
		clusters:        capiClient.Clusters(config.Namespace),
		secrets:         kube.CoreV1().Secrets(config.Namespace),
		accounts:        kube.CoreV1().ServiceAccounts(config.Namespace),
		lister:          nstanceClusters.Lister().NstanceClusters(config.Namespace),
		clusterLister:   clusters.Lister(),
		secretLister:    corev1listers.NewSecretLister(secrets.GetIndexer()).Secrets(config.Namespace),
		clock:           clock,
		writes:          controller.NewWrites(nstanceClusters.Informer().GetStore()),
		secretWrites:    controller.NewWrites(secrets.GetStore()),
	}
	c.queue = controller.NewQueue("cluster", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "NstanceClusters", Informer: nstanceClusters.Informer(),
			Handler: controller.OnChange(func(_, _ *v1beta1.NstanceCluster) { c.enqueue() })},
		controller.Watched{What: "Clusters", Informer: clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "Secret " + SecretName(config.Name), Informer: secrets,
			Handler: controller.OnChange(func(_, _ *corev1.Secret) { c.enqueue() })},
	)
	if err != nil {
		return nil, nil, err
	}
	// There is nothing to watch before the objects exist.
	c.enqueue()
	return c, registrations, nil
}

// Run syncs the cluster until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, 1) }

// clusterChanged wakes the sync when there is a Cluster or none any more, and
// when it is paused or no more. What else it becomes is Cluster API's.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before == nil || after == nil || controller.PausedBy(before) != controller.PausedBy(after) {
		c.enqueue()
	}
}

func (c *Controller) enqueue() {
	c.queue.Add(cache.NewObjectName(c.config.Namespace, c.config.Name))
}

func (c *Controller) secretKey() cache.ObjectName {
	return cache.NewObjectName(c.config.Namespace, SecretName(c.config.Name))
}
