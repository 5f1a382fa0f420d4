// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"crypto/x509"
	"errors"

	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/cluster"
	"nstance.dev/operator/pkg/operator/internal/controllers/drain"
	"nstance.dev/operator/pkg/operator/internal/controllers/importer"
	"nstance.dev/operator/pkg/operator/internal/controllers/machine"
	"nstance.dev/operator/pkg/operator/internal/controllers/machinepool"
	"nstance.dev/operator/pkg/operator/internal/controllers/machinetemplate"
	"nstance.dev/operator/pkg/operator/internal/controllers/nodesettings"
	"nstance.dev/operator/pkg/operator/internal/controllers/ondemand"
	"nstance.dev/operator/pkg/operator/internal/controllers/orphannode"
	"nstance.dev/operator/pkg/operator/internal/controllers/poolmember"
	"nstance.dev/operator/pkg/operator/internal/controllers/registration"
	"nstance.dev/operator/pkg/operator/internal/controllers/scaledown"
	"nstance.dev/operator/pkg/operator/internal/controllers/shardgroup"
	"nstance.dev/operator/pkg/operator/internal/controllers/startup"
	"nstance.dev/operator/pkg/operator/internal/controllers/workload"
	"nstance.dev/operator/pkg/operator/shard/identity"
)

// leaderController is a controller that runs on the leader only.
type leaderController interface {
	// Run runs until ctx is done, and returns when all its goroutines have ended.
	Run(ctx context.Context)
	// HasSynced returns checkers that are done when the event handlers have received
	// every object of the first lists.
	HasSynced() []cache.DoneChecker
}

// controllerList collects the controllers, and the errors of their constructors.
type controllerList struct {
	controllers []leaderController
	errs        []error
}

// add takes the two results of a constructor.
func (l *controllerList) add(c leaderController, err error) {
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	l.controllers = append(l.controllers, c)
}

// newControllers constructs the controllers. Controllers that others depend on come first.
func newControllers(options *Options, clients *clients, identity cluster.ConditionSource, d controllers.Dependencies) ([]leaderController, error) {
	pools, err := machinepool.New(d)
	if err != nil {
		return nil, err
	}
	drains, err := drain.New(d)
	if err != nil {
		return nil, err
	}
	clusterOptions, err := newClusterOptions(options, clients)
	if err != nil {
		return nil, err
	}
	clusterOptions.Identity = identity
	list := controllerList{controllers: []leaderController{pools, drains}}
	if clients.workloadServer != "" {
		reachable := workload.New(d, clients.workloadServer)
		clusterOptions.Workload = reachable
		pools.NodesReachable = func() bool { return reachable.State().Status == metav1.ConditionTrue }
		list.add(reachable, nil)
	}
	list.add(cluster.New(d, clusterOptions))
	list.add(shardgroup.New(d, shardgroup.Options{Pools: pools, Drains: drains}))
	list.add(importer.New(d, importer.Options{Delay: options.ImportDelay}))
	list.add(machine.New(d, machine.Options{Drains: drains}))
	list.add(machinetemplate.New(d))
	list.add(poolmember.New(d))
	list.add(startup.New(d))
	list.add(orphannode.New(d))
	list.add(nodesettings.New(d))
	list.add(scaledown.New(d))
	list.add(ondemand.New(d, ondemand.Options{
		Limit: options.OnDemandLimit, DrainTimeout: options.OnDemandDrainTimeout,
		Namespaces: options.OnDemandNamespaces, Groups: options.OnDemandGroups,
	}))
	return list.controllers, errors.Join(list.errs...)
}

func (c *components) dependencies(options *Options, clients *clients, informers *informers, recorder events.EventRecorder) controllers.Dependencies {
	return controllers.Dependencies{
		Namespace:   options.Namespace,
		ClusterName: options.ClusterName(),
		Kube:        clients.kube,
		Nstance:     clients.nstance.InfrastructureV1beta1(),
		CAPI:        clients.capi,
		Workload:    clients.workload,
		Informers:   informers.Informers,
		Shards:      c.connections,
		NamedShards: c.configuration,
		ShardClient: c.connections,
		Groups:      c.groups,
		Notices:     c.notices,
		Recorder:    recorder,
		Clock:       clock.RealClock{},
		Metrics:     c.metrics,
	}
}

func (c *components) registrationOptions(options *Options, informers *informers, id *identity.Identity) registration.Options {
	return registration.Options{
		ClusterID:   options.ClusterID,
		Tenant:      options.Tenant,
		CAConfigMap: options.CAConfigMap,
		NonceSecret: options.NonceSecret,
		KeySecret:   options.KeySecret,
		CertSecret:  options.CertSecret,
		CA:          informers.ca,
		Nonce:       informers.nonce,
		Key:         informers.key,
		Cert:        informers.cert,
		Endpoints:   c.configuration,
		Credentials: func(authorities *x509.CertPool, shard string) credentials.TransportCredentials {
			return identity.AnonymousCredentials(authorities, options.ClusterID, shard, options.RequireServerURI)
		},
		Renewer:          c.connections,
		Outdated:         id.Outdated,
		HandshakeHandler: id.AddHandler,
	}
}

func newClusterOptions(options *Options, clients *clients) (cluster.Options, error) {
	endpoint, err := options.endpoint()
	if err != nil {
		return cluster.Options{}, err
	}
	o := cluster.Options{Endpoint: endpoint}
	if options.CAPIEndpoint == "" {
		o.Kubeconfig = &cluster.KubeconfigSource{
			Server:         options.CAPIKubeconfigServer,
			CAData:         clients.ca,
			ServiceAccount: options.CAPIServiceAccount,
		}
	}
	return o, nil
}
