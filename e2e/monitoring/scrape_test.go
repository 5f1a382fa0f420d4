// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
)

// empty lists the panels that have no result without a fault.
var empty = map[string]bool{
	"Why is a pool not at its size?": true,
	"Finished drains by outcome":     true,
	"Duration of drains, 9 of 10":    true,
}

// Prometheus reads the metrics of the operator and of the servers with the shipped settings. The
// rules can be evaluated, no alert is active without a fault, and every panel of the dashboard has
// a result.
func TestPrometheusScrapesWithTheShippedSettings(t *testing.T) {
	prometheus := runPrometheus(t, shippedRules(t))
	env.CreatePoolForTest(t, "monitored", 3)
	env.UntilRunning(t, "monitored", 3)
	const machine = "monitored-machine"
	env.CreateMachine(t, machine, "monitored", "")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, env.Machines().Delete(ctx, machine, metav1.DeleteOptions{}))
		testcluster.Eventually(t, time.Minute, "the Machine is deleted", func(ctx context.Context) error {
			return env.MachineDeleted(ctx, machine, "")
		})
	})

	testcluster.Eventually(t, time.Minute, "every target is up", func(ctx context.Context) error {
		results, err := prometheus.query(ctx, "up")
		if err == nil && len(results) != 1+len(shards) {
			err = fmt.Errorf("%d targets", len(results))
		}
		for _, result := range results {
			if result.Value[1] != "1" {
				err = fmt.Errorf("%v is %v: %s", result.Metric, result.Value[1], prometheus.errors(ctx))
			}
		}
		return err
	})
	counted, err := prometheus.query(t.Context(), `count({job="nstance-operator-metrics", __name__!~"nstance_operator_(group|machines).*"})`)
	require.NoError(t, err)
	require.Len(t, counted, 1)
	t.Logf("%v series of the operator, those of groups and machines aside", counted[0].Value[1])
	panels := dashboardQueries(t)
	testcluster.Eventually(t, time.Minute, "every panel has a result", func(ctx context.Context) error {
		var errs []error
		for title, queries := range panels {
			for _, query := range queries {
				results, err := prometheus.query(ctx, strings.NewReplacer("$__rate_interval", "30s", "$namespace", ".*", "$group", ".*").Replace(query))
				if err == nil && len(results) == 0 && !empty[title] {
					err = errors.New("no result")
				}
				if err != nil {
					errs = append(errs, fmt.Errorf("panel %q, query %q: %w", title, query, err))
				}
			}
		}
		return errors.Join(errs...)
	})
	testcluster.Eventually(t, time.Minute, "the rules are evaluated and no alert is active", prometheus.quiet)
}

// dashboardQueries returns the queries of the dashboard by the title of their panels.
func dashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "dashboard.json"))
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	queries := map[string][]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] = append(queries[panel.Title], target.Expr)
		}
	}
	assert.NotEmpty(t, queries)
	return queries
}
