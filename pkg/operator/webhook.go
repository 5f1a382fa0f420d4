// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/admission"
	"nstance.dev/operator/pkg/operator/internal/admission/certificate"
)

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
