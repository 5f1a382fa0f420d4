// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package operator puts the operator together: clients, informers, election,
// the connections to the shards, and the controllers.
package operator

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/cluster"
	"nstance.dev/operator/pkg/controller/importer"
	"nstance.dev/operator/pkg/controller/machinepool"
	"nstance.dev/operator/pkg/controller/shardgroup"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	"nstance.dev/operator/pkg/shard/pool"
)

// Run runs the operator until ctx ends. It returns an error when it cannot
// start or when it lost the lease; the process must then exit.
//
// The order is: watch Kubernetes, wait for complete caches, be elected, connect
// to the shards, work. Everything before the election runs on a standby too.
func Run(ctx context.Context, options *Options) error {
	clients, err := newClients(options.Kubeconfig)
	if err != nil {
		return err
	}
	informers, err := newInformers(clients, options)
	if err != nil {
		return err
	}
	health := newHealth()
	if err := health.serve(ctx, options.HTTPAddress); err != nil {
		return err
	}
	recorder, err := newRecorder(ctx, clients)
	if err != nil {
		return err
	}
	parts, err := assemble(ctx, options, clients, informers, recorder)
	if err != nil {
		return err
	}

	if err := parts.webhook.serve(ctx, options.WebhookAddress); err != nil {
		return err
	}
	informers.run(ctx)
	if !cache.WaitFor(ctx, "caches", parts.synced...) {
		return nil
	}
	health.synced.Store(true)
	klog.FromContext(ctx).Info("Caches are complete", "namespace", options.Namespace, "cluster", options.ClusterName())
	return lead(ctx, clients.kube, options, health.watchdog, parts.work)
}

func newRecorder(ctx context.Context, clients *clients) (events.EventRecorder, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register built-in kinds: %w", err)
	}
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register our kinds: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.kube.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start recording events: %w", err)
	}
	return controller.LimitEvents(broadcaster.NewRecorder(scheme, controller.FieldManager), clock.RealClock{}), nil
}

// parts is what runs on the leader, and the webhook, which is served on every
// replica.
type parts struct {
	webhook       *webhook
	configuration *configuration
	pool          *pool.Pool
	groups        *informer.Groups
	controllers   []interface{ Run(context.Context) }
	// synced are done when every handler has seen every object.
	synced []cache.DoneChecker
}

func assemble(ctx context.Context, options *Options, clients *clients, informers *informers, recorder events.EventRecorder) (*parts, error) {
	id := &identity.Identity{}
	p := &parts{
		pool:   pool.New(pool.Options{Credentials: id.TransportCredentials()}),
		groups: informer.NewGroups(),
	}
	watched := func(registrations ...cache.ResourceEventHandlerRegistration) {
		for _, registration := range registrations {
			p.synced = append(p.synced, registration.HasSyncedChecker())
		}
	}

	p.configuration = &configuration{pool: p.pool, identity: id, recorder: recorder}
	registrations, err := p.configuration.watch(ctx, informers)
	if err != nil {
		return nil, err
	}
	watched(registrations...)

	p.webhook, registrations, err = newWebhook(ctx, options, clients, informers)
	if err != nil {
		return nil, err
	}
	watched(registrations...)

	endpoint, err := options.endpoint()
	if err != nil {
		return nil, err
	}
	clusterConfig := cluster.Config{Namespace: options.Namespace, Name: options.ClusterName(), Endpoint: endpoint}
	if options.CAPIEndpoint == "" {
		clusterConfig.Kubeconfig = &cluster.KubeconfigSource{
			Server:         options.CAPIKubeconfigServer,
			CAData:         clients.ca,
			ServiceAccount: options.CAPIServiceAccount,
		}
	}
	clusters, registrations, err := cluster.New(clusterConfig, clients.nstance.InfrastructureV1beta1(), clients.capi, clients.kube,
		informers.nstance.NstanceClusters(), informers.clusters, informers.kubeconfig, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	watched(registrations...)

	pools, registrations, err := machinepool.New(options.Namespace, options.ClusterName(),
		clients.nstance.InfrastructureV1beta1(), clients.capi,
		informers.nstance.NstanceMachinePools(), informers.nstance.NstanceShardGroups(), informers.machinePools, informers.clusters, informers.nodes,
		p.pool, p.groups, recorder)
	if err != nil {
		return nil, err
	}
	watched(registrations...)

	shardGroups, registration, err := shardgroup.New(options.Namespace,
		clients.nstance.InfrastructureV1beta1().NstanceShardGroups(options.Namespace),
		informers.nstance.NstanceShardGroups(), p.pool, p.groups, pools, recorder, clock.RealClock{})
	if err != nil {
		return nil, err
	}
	watched(registration)

	imports, registrations, err := importer.New(options.Namespace, options.ClusterName(), clients.nstance.InfrastructureV1beta1(),
		informers.nstance.NstanceMachinePools(), informers.nstance.NstanceShardGroups(), informers.machinePools, informers.clusters,
		p.configuration, p.groups, recorder)
	if err != nil {
		return nil, err
	}
	watched(registrations...)

	pools.AddPauseHandler(shardGroups.Wake)
	p.hear(pools, shardGroups, imports)
	p.controllers = []interface{ Run(context.Context) }{clusters, pools, shardGroups, imports, p.webhook.certificates}
	return p, nil
}

// hear tells the controllers what comes from the shards.
func (p *parts) hear(pools *machinepool.Controller, shardGroups *shardgroup.Controller, imports *importer.Controller) {
	shardChanged := func(id string) {
		shardGroups.ShardChanged(id)
		pools.ShardChanged(id)
		imports.ShardChanged(id)
	}
	p.pool.AddHandler(shardChanged)
	p.configuration.onShards = func() { imports.ShardChanged("") }
	p.groups.AddHandler(informer.Handler{
		OnShard: shardChanged,
		OnGroup: func(id, group string) {
			shardGroups.GroupChanged(id, group)
			imports.GroupChanged(id, group)
		},
		OnError: func(id string, event shard.ErrorEvent) {
			if event.Group == "" {
				p.configuration.shardFailed(id, event.Message)
				return
			}
			shardGroups.ShardFailed(id, event.Group, event.Message)
		},
	})
}

// work connects to the shards and runs the controllers until ctx ends. It
// returns when all of them have stopped, the controllers before the connections.
func (p *parts) work(ctx context.Context) error {
	p.configuration.lead()
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	var shards, controllers sync.WaitGroup
	shards.Go(func() {
		p.pool.Run(connected, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			p.groups.Serve(ctx, shard, client)
		})
	})
	for _, controller := range p.controllers {
		controllers.Go(func() { controller.Run(ctx) })
	}
	controllers.Wait()
	disconnect()
	shards.Wait()
	return nil
}

// The interfaces that the controllers declare are met by the shards' own types.
var (
	_ shardgroup.Shards  = (*pool.Pool)(nil)
	_ shardgroup.Groups  = (*informer.Groups)(nil)
	_ machinepool.Shards = (*pool.Pool)(nil)
	_ machinepool.Groups = (*informer.Groups)(nil)
	_ importer.Groups    = (*informer.Groups)(nil)
)
