// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metric adds up the series of a metric whose labels contain labels.
func metric(ctx context.Context, url, name string, labels map[string]string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("GET %s/metrics: %s", url, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, series := range families[name].GetMetric() {
		matching := 0
		for _, label := range series.GetLabel() {
			if want, ok := labels[label.GetName()]; ok && want == label.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
		}
	}
	return sum, nil
}

// upserts is how many UpsertGroup calls all shard servers have received since
// each of them started.
func upserts(t testing.TB) float64 {
	t.Helper()
	var sum float64
	for _, shard := range env.shards {
		sum += upsertsOf(t, shard.ID)
	}
	return sum
}

func upsertsOf(t testing.TB, id string) float64 {
	t.Helper()
	for _, shard := range env.shards {
		if shard.ID != id {
			continue
		}
		count, err := metric(t.Context(), fmt.Sprintf("http://127.0.0.1:%d", shard.HealthPort),
			"nstance_server_rpc_total", map[string]string{"method": "UpsertGroup"})
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	t.Fatalf("no shard %s", id)
	return 0
}
