// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metric reads the metrics that an operator or a server serves at url, and returns the sum
// of the series of one whose labels contain labels. The value of a histogram is the sum of
// its observations. A missing metric is zero.
func Metric(ctx context.Context, url, name string, labels map[string]string) (float64, error) {
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
		return 0, fmt.Errorf("read the metrics of %s: %w", url, err)
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
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetHistogram().GetSampleSum()
		}
	}
	return sum, nil
}
