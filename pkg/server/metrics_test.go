// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/internal/loadbalancers"
	"nstance.dev/operator/pkg/server/internal/reconciler"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/metricstest"
)

func TestEveryMetricIsDocumented(t *testing.T) {
	sh := &shared{registry: prometheus.NewRegistry()}
	sh.registerMetrics()
	grpcapi.Count(sh.registry)
	storage.WithMetrics(nil, sh.registry)
	registered := metricstest.Described([]string{"nstance_server_"}, sh.registry, &reconciler.Collector{},
		&loadbalancers.Syncer{}, new(leaderNetwork).metric())
	assert.Equal(t, registered, metricstest.Documented(t, filepath.Join("..", "..", "docs", "server.md")))
}
