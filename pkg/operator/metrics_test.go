// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// foreign are metrics of component-base, as the document has them: they are registered
// when client-go uses them.
var foreign = []string{"leader_election_master_status", "rest_client_*", "workqueue_*"}

// registered returns the names of the metrics of the operator itself.
func registered(t *testing.T) []string {
	t.Helper()
	options := complete()
	options.CAPIEndpoint = "https://workload:6443"
	clients, informers := clusterOf(t, newAPIServer(t), options)
	registry := prometheus.NewRegistry()
	components, err := newComponents(t.Context(), options, clients, informers, &recorder{}, "uid", registry)
	require.NoError(t, err)
	return metricstest.Described([]string{""}, registry, components.state,
		controller.SyncPanics, controller.SyncDuration, version.NewCollector("nstance_operator"))
}

func TestEveryMetricIsDocumented(t *testing.T) {
	documented := metricstest.Documented(t, filepath.Join("..", "..", "docs", "operations.md"))
	want := append(registered(t), foreign...)
	slices.Sort(want)
	assert.Equal(t, want, documented)
}

// Names of Nodes, Pods and instances as labels would be a series each.
func TestNoMetricNamesNodesPodsOrInstances(t *testing.T) {
	options := complete()
	clients, informers := clusterOf(t, newAPIServer(t), options)
	registry := prometheus.NewRegistry()
	components, err := newComponents(t.Context(), options, clients, informers, &recorder{}, "uid", registry)
	require.NoError(t, err)
	for _, collector := range []prometheus.Collector{registry, components.state, controller.SyncPanics, controller.SyncDuration} {
		descriptions := make(chan *prometheus.Desc, 1000)
		collector.Describe(descriptions)
		close(descriptions)
		for description := range descriptions {
			_, labels, _ := strings.Cut(description.String(), "variableLabels: {")
			for label := range strings.SplitSeq(strings.TrimSuffix(labels, "}}"), ",") {
				assert.NotContains(t, []string{"node", "pod", "instance", "machine", "name", "uid", "key"}, label, description.String())
			}
		}
	}
}
