// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package operator assembles nstance-operator: clients, informers, election, the connections
// to the shards, the webhook and the controllers.
package operator

import (
	"context"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/daemon"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/operator/internal/controllers/registration"
	"nstance.dev/operator/pkg/operator/internal/statemetrics"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/operator/shard/informer"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Run runs the operator until ctx is done. It returns an error when it cannot
// start or when it lost the lease; the process must then exit.
//
// The order is: watch Kubernetes, wait for complete caches, be elected, connect
// to the shards, work. Everything before the election runs on a standby too.
func Run(ctx context.Context, options *Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	informers, err := newInformers(clients, options)
	if err != nil {
		return err
	}
	health := daemon.NewHealth()
	metrics := daemon.NewMetricsHandler("nstance_operator", controller.SyncPanics, controller.SyncDuration)
	unprotected := metrics
	if options.MetricsAddress != "" {
		unprotected = http.NotFoundHandler()
	}
	if err := health.Serve(ctx, options.HTTPAddress, unprotected); err != nil {
		return err
	}
	recorder, err := newRecorder(ctx, clients)
	if err != nil {
		return err
	}
	cluster, err := kubernetesCluster(ctx, clients.kube)
	if err != nil {
		return err
	}
	components, err := newComponents(ctx, options, clients, informers, recorder, cluster, legacyregistry.Registerer())
	if err != nil {
		return err
	}

	if err := components.webhook.serve(ctx, options.WebhookAddress); err != nil {
		return err
	}
	if options.MetricsAddress != "" {
		if err := components.webhook.serveMetrics(ctx, options.MetricsAddress, clients.metrics.Protect(metrics)); err != nil {
			return err
		}
	}
	informers.run(ctx)
	if !cache.WaitFor(ctx, "caches", components.synced...) {
		return nil
	}
	if err := components.registration.Check(); err != nil {
		return err
	}
	health.Synced.Store(true)
	klog.FromContext(ctx).Info("Caches are complete", "namespace", options.Namespace, "cluster", options.ClusterName())
	return election.Lead(ctx, clients.lease, health.Watchdog, func(ctx context.Context) error {
		if err := election.CheckNotRestored(ctx, cachedKinds(clients, informers, options.Namespace)); err != nil {
			return err
		}
		if err := checkWorkloadNotRestored(ctx, clients, informers); err != nil {
			return err
		}
		return components.work(ctx)
	})
}

// components are the parts that only the leader runs, and the webhook, which every replica
// serves.
type components struct {
	webhook       *webhook
	configuration *configuration
	connections   *connpool.Pool
	groups        *informer.Groups
	notices       *informer.Notices
	registration  *registration.Controller
	controllers   []leaderController
	// metrics is the registry of all replicas. state is registered on the leader only.
	metrics prometheus.Registerer
	state   *statemetrics.Collector
	// synced are done when every event handler has received all objects of the first lists.
	synced []cache.DoneChecker
}

func newComponents(
	ctx context.Context, options *Options, clients *clients, informers *informers, recorder events.EventRecorder, kubernetesCluster string,
	metrics prometheus.Registerer,
) (*components, error) {
	id := &identity.Identity{RequireURI: options.RequireServerURI}
	c := &components{
		connections: connpool.New(connpool.Options{
			Credentials:       id.Credentials(options.ClusterID),
			Deadline:          clients.lease.Deadline,
			KubernetesCluster: kubernetesCluster,
			Metrics:           connpool.NewMetrics(metrics),
		}),
		notices: informer.NewNotices(),
		metrics: metrics,
	}
	var err error
	c.configuration, err = newConfiguration(ctx, c.connections, id, informers, recorder)
	if err != nil {
		return nil, err
	}
	c.groups = informer.NewGroups(informer.Options{
		KnownInstances: knownInstances(informers.Nstance, options.Namespace),
		Confirmed:      c.configuration.confirmed,
		ProbeInterval:  options.ShardProbeInterval,
	})
	c.groups.AddHandler(shard.GroupHandler{OnError: c.configuration.errorReported})
	c.state = c.newState(options, informers)
	metrics.MustRegister(watchedInformers(informers))
	c.webhook, err = newWebhook(ctx, options, clients, informers, c.groups, metrics)
	if err != nil {
		return nil, err
	}
	dependencies := c.dependencies(options, clients, informers, recorder)
	c.registration, err = registration.New(dependencies, c.registrationOptions(options, informers, id))
	if err != nil {
		return nil, err
	}
	c.controllers, err = newControllers(options, clients, c.registration, dependencies)
	if err != nil {
		return nil, err
	}
	c.controllers = append(c.controllers, c.registration, c.webhook.certificates)

	c.synced = append(c.configuration.HasSynced(), c.webhook.HasSynced()...)
	for _, controller := range c.controllers {
		c.synced = append(c.synced, controller.HasSynced()...)
	}
	return c, nil
}

// work connects to the shards and runs the controllers until ctx is done. It stops the
// controllers before the connections.
func (c *components) work(ctx context.Context) error {
	c.configuration.lead()
	c.metrics.MustRegister(c.state)
	defer c.metrics.Unregister(c.state)
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	var shards, running sync.WaitGroup
	shards.Go(func() {
		c.connections.Run(connected, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			var caches sync.WaitGroup
			caches.Go(func() { c.groups.Serve(ctx, shard, client) })
			caches.Go(func() { c.notices.Serve(ctx, shard, client) })
			caches.Wait()
		})
	})
	for _, controller := range c.controllers {
		running.Go(func() { controller.Run(ctx) })
	}
	running.Wait()
	disconnect()
	shards.Wait()
	return nil
}

// newState returns the collector of metrics about shards, groups and machines.
func (c *components) newState(options *Options, informers *informers) *statemetrics.Collector {
	return statemetrics.New(statemetrics.Sources{
		Shards:      c.configuration.Shards,
		Groups:      c.groups,
		Notices:     c.notices,
		ShardGroups: informers.Nstance.NstanceShardGroups().Lister().NstanceShardGroups(options.Namespace),
		Machines:    informers.Nstance.NstanceMachines().Lister().NstanceMachines(options.Namespace),
	})
}

// watchedInformers returns the informers whose caches may be large, by resource.
func watchedInformers(i *informers) statemetrics.Informers {
	return statemetrics.Informers{
		"nstancemachinepools": i.Nstance.NstanceMachinePools().Informer(),
		"nstanceshardgroups":  i.Nstance.NstanceShardGroups().Informer(),
		"nstancemachines":     i.Nstance.NstanceMachines().Informer(),
		"clusters":            i.Clusters,
		"machinepools":        i.MachinePools,
		"machines":            i.Machines,
		"nodes":               i.Nodes,
		"pods":                i.Pods,
		"volumeattachments":   i.VolumeAttachments,
	}
}
