// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package operator puts the marekvs operator together: clients, informers, election, and the
// controller of clusters.
package operator

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/daemon"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/cluster"
	"nstance.dev/operator/pkg/marekvs/observe"
)

// leaseName is the name of the Lease of the leader.
const leaseName = "marekvs-operator-leader-election"

// clients reach the API server. They change nothing without the lease.
type clients struct {
	lease   *election.Lease
	kube    kubernetes.Interface
	marekvs versioned.Interface
}

func newClients(options *Options) (*clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", options.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load the configuration for the API server: %w", err)
	}
	// The API server's priority and fairness decides, not a limit of our own.
	config.QPS = -1
	rest.AddUserAgent(config, v1alpha1.ManagerName)
	config.WarningHandlerWithContext = &warnings{}
	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for the lease: %w", err)
	}
	c := &clients{}
	if c.lease, err = election.New(leases, options.Namespace, leaseName, options.Timing); err != nil {
		return nil, err
	}
	config.Wrap(c.lease.Guard)
	builtIn := rest.CopyConfig(config)
	builtIn.ContentType = runtime.ContentTypeProtobuf
	builtIn.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if c.kube, err = kubernetes.NewForConfig(builtIn); err != nil {
		return nil, fmt.Errorf("make the client for built-in kinds: %w", err)
	}
	if c.marekvs, err = versioned.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make the client for MarekvsClusters: %w", err)
	}
	return c, nil
}

// Run runs the operator until ctx is done. It returns an error when it cannot start or when
// it lost the lease; the process must then exit.
func Run(ctx context.Context, options *Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	health := daemon.NewHealth()
	if err := health.Serve(ctx, options.HTTPAddress, daemon.NewMetricsHandler("marekvs_operator", controller.SyncPanics, controller.SyncDuration)); err != nil {
		return err
	}
	recorder, err := controller.NewRecorder(ctx, clients.kube, v1alpha1.ManagerName, v1alpha1.AddToScheme)
	if err != nil {
		return err
	}
	informers := newInformers(clients, options)
	clusters, err := cluster.New(cluster.Config{
		Kube:      clients.kube,
		Marekvs:   clients.marekvs.MarekvsV1alpha1(),
		Informers: informers.Informers,
		Scraper: observe.NewScraper(observe.ScrapeOptions{
			Port: int(options.MetricsPort), Timeout: options.ScrapeTimeout, Parallel: options.ScrapeParallel,
		}),
		Recorder:   recorder,
		Clock:      clock.RealClock{},
		Children:   children.Options{ClusterDomain: options.ClusterDomain, MetricsPort: options.MetricsPort},
		Period:     options.SyncPeriod,
		Settle:     options.SettleTime,
		RateWindow: options.RateWindow,
	})
	if err != nil {
		return err
	}
	informers.run(ctx)
	if !cache.WaitFor(ctx, "caches", clusters.HasSynced()...) {
		return nil
	}
	health.Synced.Store(true)
	klog.FromContext(ctx).Info("Caches are complete", "watchNamespace", options.WatchNamespace)
	return election.Lead(ctx, clients.lease, health.Watchdog, func(ctx context.Context) error {
		if err := election.CheckNotRestored(ctx, cachedKinds(clients, informers, options.WatchNamespace)); err != nil {
			return err
		}
		clusters.Run(ctx)
		return nil
	})
}

// cachedKinds are the kinds that decide what is removed.
func cachedKinds(clients *clients, informers *informers, namespace string) []election.CachedKind {
	return []election.CachedKind{
		{Name: "MarekvsClusters", Cache: informers.Clusters, List: election.Lister(clients.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).List)},
		{Name: "StatefulSets", Cache: informers.StatefulSets, List: election.Lister(clients.kube.AppsV1().StatefulSets(namespace).List)},
		{Name: "Pods", Cache: informers.Pods, List: election.Lister(clients.kube.CoreV1().Pods(namespace).List)},
	}
}
