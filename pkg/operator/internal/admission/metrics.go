// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// otherResource is the label of every resource that the webhook is not configured for, so
// that a client cannot create any number of series.
const otherResource = "other"

// Metrics counts the decisions of the webhook.
type Metrics struct {
	decisions *prometheus.CounterVec
}

// NewMetrics registers the metrics of the webhook.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_operator_webhook_decisions_total",
		Help: "Requests that the admission webhook has decided, by resource and whether they were allowed.",
	}, []string{"resource", "allowed"})}
	registry.MustRegister(m.decisions)
	return m
}

func (m *Metrics) decided(resource metav1.GroupVersionResource, allowed bool) {
	name := otherResource
	if resource == pools || resource == machinePools {
		name = resource.Resource
	}
	m.decisions.WithLabelValues(name, strconv.FormatBool(allowed)).Inc()
}
