// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/admission"
	"nstance.dev/operator/pkg/operator/internal/admission/certificate"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/cluster"
	"nstance.dev/operator/pkg/operator/internal/controllers/drain"
	"nstance.dev/operator/pkg/operator/internal/controllers/importer"
	"nstance.dev/operator/pkg/operator/internal/controllers/machine"
	"nstance.dev/operator/pkg/operator/internal/controllers/machinepool"
	"nstance.dev/operator/pkg/operator/internal/controllers/ondemand"
	"nstance.dev/operator/pkg/operator/internal/controllers/poolmember"
	"nstance.dev/operator/pkg/operator/internal/controllers/registration"
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
		list.add(reachable, nil)
	}
	list.add(cluster.New(d, clusterOptions))
	list.add(shardgroup.New(d, shardgroup.Options{Pools: pools, Drains: drains}))
	list.add(importer.New(d))
	list.add(machine.New(d, machine.Options{Drains: drains}))
	list.add(poolmember.New(d))
	list.add(startup.New(d))
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

func (c *components) registrationOptions(options *Options, informers *informers) registration.Options {
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
			return identity.AnonymousCredentials(authorities, options.ClusterID, shard)
		},
		Renewer: c.connections,
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

// metricsService is the Service in manifests from which clients read the metrics.
const metricsService = "nstance-operator-metrics"

// webhook is the admission webhook. It is served on every replica; the leader
// keeps its certificate.
type webhook struct {
	controller.Registrations

	validator    *admission.Validator
	metrics      *admission.Metrics
	serving      certificate.Serving
	certificates *certificate.Controller
}

func newWebhook(
	ctx context.Context, options *Options, clients *clients, informers *informers, groups admission.Groups, metrics prometheus.Registerer,
) (*webhook, error) {
	w := &webhook{metrics: admission.NewMetrics(metrics)}
	var err error
	w.validator, err = admission.NewValidator(
		admission.Config{Namespace: options.Namespace, ClusterName: options.ClusterName(), ShardsConfigMap: options.ShardsConfigMap},
		informers.Nstance.NstanceMachinePools(), informers.MachinePools, informers.Clusters, informers.shards, groups)
	if err != nil {
		return nil, err
	}
	served, err := w.serving.Watch(ctx, informers.webhookCert)
	if err != nil {
		return nil, err
	}
	w.Registrations = controller.Registrations{served}
	w.certificates, err = certificate.New(
		certificate.Config{
			Namespace: options.Namespace, Secret: options.WebhookSecret, Configuration: options.WebhookConfiguration,
			Hosts: []string{metricsService + "." + options.Namespace + ".svc"},
		},
		clients.kube, informers.webhookCert, informers.webhookConfiguration, clock.RealClock{})
	return w, err
}

// serve serves the webhook until ctx is done. It returns once the address is bound.
func (w *webhook) serve(ctx context.Context, address string) error {
	if err := admission.Serve(ctx, address, admission.NewHandler(w.validator, w.metrics), w.serving.GetCertificate); err != nil {
		return fmt.Errorf("--webhook-address: %w", err)
	}
	return nil
}

// serveMetrics serves the metrics with the certificate of the webhook until ctx is done.
// It returns once the address is bound.
func (w *webhook) serveMetrics(ctx context.Context, address string, handler http.Handler) error {
	if err := admission.Serve(ctx, address, handler, w.serving.GetCertificate); err != nil {
		return fmt.Errorf("--metrics-address: %w", err)
	}
	return nil
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
