// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cluster contains the controller of MarekvsClusters.
package cluster

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/zones"
)

// workers is the number of clusters that are synced at a time. It is high because a sync
// waits for nodes that do not respond.
const workers = 16

// syncTimeout bounds the observation and the writes of a sync, and publishTimeout the write of its status: what has taken
// too long is published, too.
const syncTimeout, publishTimeout = time.Minute, 15 * time.Second

// Informers has the informers of the controller. The informers of children are limited to
// the label app.kubernetes.io/managed-by of the operator.
type Informers struct {
	Clusters, StatefulSets, Services, Budgets, Pods, Claims cache.SharedIndexInformer
}

// Scraper reads the metrics of nodes.
type Scraper interface {
	Scrape(ctx context.Context, addresses []string) []observe.Scrape
}

// Config has the clients, caches and settings of a Controller.
type Config struct {
	Kube      kubernetes.Interface
	Marekvs   clientset.MarekvsV1alpha1Interface
	Informers Informers
	Scraper   Scraper
	Recorder  events.EventRecorder
	Clock     clock.PassiveClock

	Children children.Options
	// Period is the time between two syncs of a cluster that does not change.
	Period time.Duration
	// Settle is how long the nodes must be unchanged before a removal.
	Settle time.Duration
	// RateWindow is the minimum time over which a rate is averaged.
	RateWindow time.Duration
}

// Controller reconciles MarekvsClusters: their objects, size and template.
type Controller struct {
	Config
	controller.Registrations

	queue         *controller.Queue[cache.ObjectName]
	clusterWrites *controller.WriteTracker
	setWrites     *controller.WriteTracker
	staleReads    controller.StaleReads

	mu       sync.Mutex
	memories map[types.UID]*memory

	zones zones.Zones

	// leads is true while clusters are synced.
	leads atomic.Bool
}

// New returns a Controller, and registers its event handlers.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:        config,
		clusterWrites: controller.NewWriteTracker(config.Informers.Clusters.GetStore()),
		setWrites:     controller.NewWriteTracker(config.Informers.StatefulSets.GetStore()),
		memories:      map[types.UID]*memory{},
	}
	c.queue = controller.NewQueue("marekvscluster", c.sync)
	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "MarekvsClusters", Informer: config.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "StatefulSets", Informer: config.Informers.StatefulSets, Handler: onChild[appsv1.StatefulSet](c)},
		controller.Watched{What: "Services", Informer: config.Informers.Services, Handler: onChild[corev1.Service](c)},
		controller.Watched{What: "PodDisruptionBudgets", Informer: config.Informers.Budgets, Handler: onChild[policyv1.PodDisruptionBudget](c)},
		controller.Watched{What: "Pods", Informer: config.Informers.Pods, Handler: onPart[corev1.Pod](c),
			Indexers: cache.Indexers{byController: indexByController}},
		controller.Watched{What: "PersistentVolumeClaims", Informer: config.Informers.Claims, Handler: onPart[corev1.PersistentVolumeClaim](c),
			Indexers: cache.Indexers{byCluster: indexByCluster}},
	)
	return c, err
}

// Run syncs clusters until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	c.leads.Store(true)
	defer c.leads.Store(false)
	c.queue.Run(ctx, workers)
}

const (
	// byController indexes Pods by the UID of their controller.
	byController = "controller"
	// byCluster indexes volume claims by namespace and cluster.
	byCluster = "cluster"
)

func indexByController(obj any) ([]string, error) {
	if object, ok := obj.(metav1.Object); ok {
		if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
			return []string{string(owner.UID)}, nil
		}
	}
	return nil, nil
}

func indexByCluster(obj any) ([]string, error) {
	if object, ok := obj.(metav1.Object); ok {
		return []string{clusterKey(object).String()}, nil
	}
	return nil, nil
}

// clusterKey returns the key of the cluster in the labels of an object.
func clusterKey(object metav1.Object) cache.ObjectName {
	return cache.NewObjectName(object.GetNamespace(), object.GetLabels()[v1alpha1.LabelApp])
}

// clusterChanged enqueues a cluster whose spec changed. A change of the status is not
// relevant: only this controller writes it.
func (c *Controller) clusterChanged(before, after *v1alpha1.MarekvsCluster) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before == nil, before.UID != after.UID, before.Generation != after.Generation,
		before.ResourceVersion == after.ResourceVersion: // a resync
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// onChild enqueues the cluster that controls an object.
func onChild[T any](c *Controller) cache.ResourceEventHandler {
	return controller.OnChange(func(before, after *T) {
		for _, state := range []*T{before, after} {
			object, ok := any(state).(metav1.Object)
			if state == nil || !ok {
				continue
			}
			if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == v1alpha1.ClusterKind {
				c.queue.AddAfter(cache.NewObjectName(object.GetNamespace(), owner.Name), controller.StaleRetry)
			}
		}
	})
}

// onPart enqueues the cluster in the labels of a Pod or a claim. It waits a moment, because
// many may change at the same time.
func onPart[T any](c *Controller) cache.ResourceEventHandler {
	return controller.OnChange(func(before, after *T) {
		state := after
		if state == nil {
			state = before
		}
		if object, ok := any(state).(metav1.Object); ok {
			c.queue.AddAfter(clusterKey(object), controller.BatchPeriod)
		}
	})
}
