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
	instances     *informer.Instances
	controllers   []runner
	// synced are done when every handler has seen every object.
	synced []cache.DoneChecker
}

func assemble(ctx context.Context, options *Options, clients *clients, informers *informers, recorder events.EventRecorder) (*parts, error) {
	id := &identity.Identity{}
	p := &parts{
		pool:      pool.New(pool.Options{Credentials: id.TransportCredentials()}),
		groups:    informer.NewGroups(),
		instances: informer.NewInstances(),
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

	controllers, registrations, err := newControllers(options, clients, informers, p, recorder)
	if err != nil {
		return nil, err
	}
	watched(registrations...)
	controllers.hear(p)
	p.controllers = append(controllers.all(), p.webhook.certificates)
	return p, nil
}

// work connects to the shards and runs the controllers until ctx ends. It
// returns when all of them have stopped, the controllers before the connections.
func (p *parts) work(ctx context.Context) error {
	p.configuration.lead()
	connected, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	var shards, running sync.WaitGroup
	shards.Go(func() {
		p.pool.Run(connected, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			var caches sync.WaitGroup
			caches.Go(func() { p.groups.Serve(ctx, shard, client) })
			caches.Go(func() { p.instances.Serve(ctx, shard, client) })
			caches.Wait()
		})
	})
	for _, controller := range p.controllers {
		running.Go(func() { controller.Run(ctx) })
	}
	running.Wait()
	disconnect()
	shards.Wait()
	return nil
}
