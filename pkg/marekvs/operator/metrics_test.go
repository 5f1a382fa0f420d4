// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/marekvs/cluster"
	"nstance.dev/operator/pkg/testing/metricstest"
)

const (
	monitoring = "../../../manifests/marekvs/monitoring"
	document   = "../../../docs/marekvs-monitoring.md"
)

// foreign are metrics of component-base in the notation of the document. They are registered
// when client-go uses them.
var foreign = []string{"leader_election_master_status", "rest_client_*", "workqueue_*"}

// known returns the names of the metrics of the operator.
func known() []string {
	own := collectors(&cluster.Controller{})
	names := metricstest.Described([]string{""}, append(own, version.NewCollector("marekvs_operator"))...)
	return append(names, foreign...)
}

func TestEveryMetricIsDocumented(t *testing.T) {
	want := known()
	slices.Sort(want)
	assert.Equal(t, want, metricstest.Documented(t, document))
}

// rule is a rule of a PrometheusRule.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) (alerts []rule) {
	t.Helper()
	var object struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []rule `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	read(t, "prometheus_rule.yaml", &object)
	for _, group := range object.Spec.Groups {
		alerts = append(alerts, group.Rules...)
	}
	require.NotEmpty(t, alerts)
	return alerts
}

// read decodes a file of YAML. Fields that object does not have are errors.
func read(t *testing.T, name string, object any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(monitoring, name))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, object), name)
}

// Each alert has a section that explains what to do, and the document has no sections for other alerts.
func TestEveryAlertHasARunbook(t *testing.T) {
	var want, got []string
	for _, alert := range alerts(t) {
		want = append(want, alert.Alert)
		assert.Equal(t, "docs/marekvs-monitoring.md#"+strings.ToLower(alert.Alert), alert.Annotations["runbook_url"], alert.Alert)
		assert.Contains(t, []string{"critical", "warning"}, alert.Labels["severity"], alert.Alert)
	}
	for _, match := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(metricstest.Section(t, document, "Alerts"), -1) {
		got = append(got, match[1])
	}
	assert.ElementsMatch(t, want, got, "alerts with a section in docs/marekvs-monitoring.md")
	metricstest.ExpectAnnotations(t, filepath.Join(monitoring, "dashboard.json"), want)
}

// Each alert fires in one test and is silent in another.
func TestEveryAlertIsTested(t *testing.T) {
	var tests struct {
		RuleFiles []string `json:"rule_files"`
		Interval  string   `json:"evaluation_interval"`
		Tests     []struct {
			Name        string `json:"name"`
			Interval    string `json:"interval"`
			InputSeries []any  `json:"input_series"`
			Alerts      []struct {
				Time     string `json:"eval_time"`
				Name     string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	read(t, "prometheus_rule_test.yaml", &tests)
	var fires, silent, names []string
	for _, test := range tests.Tests {
		require.NotEmpty(t, test.InputSeries, test.Name)
		for _, alert := range test.Alerts {
			if len(alert.Expected) > 0 {
				fires = append(fires, alert.Name)
			} else {
				silent = append(silent, alert.Name)
			}
		}
	}
	for _, alert := range alerts(t) {
		names = append(names, alert.Alert)
	}
	assert.ElementsMatch(t, names, fires, "alerts that fire in a test")
	assert.ElementsMatch(t, names, silent, "alerts that are silent in a test")
}

var (
	// quoted matches the values of labels, grouping the labels by which series are aggregated.
	quoted   = regexp.MustCompile(`"[^"]*"`)
	grouping = regexp.MustCompile(`\b(by|on) \([^)]*\)`)
	metric   = regexp.MustCompile(`\b(?:marekvs|controller|workqueue|rest_client|leader_election|process)_[a-z0-9_]+`)
)

// The alerts and the panels of the dashboard use metrics that exist.
func TestEveryQueryUsesMetricsThatExist(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	queries := map[string][]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] = append(queries[panel.Title], target.Expr)
		}
		assert.Equal(t, panel.Type == "row", len(panel.Targets) == 0, panel.Title)
	}
	for _, alert := range alerts(t) {
		queries[alert.Alert] = append(queries[alert.Alert], alert.Expr)
	}
	exist := known()
	for title, expressions := range queries {
		for _, expression := range expressions {
			names := metric.FindAllString(grouping.ReplaceAllString(quoted.ReplaceAllString(expression, ""), ""), -1)
			assert.NotEmpty(t, names, "%s: %s", title, expression)
			for _, name := range names {
				for _, suffix := range []string{"_bucket", "_count"} {
					name = strings.TrimSuffix(name, suffix)
				}
				assert.True(t, slices.Contains(exist, name) || strings.HasPrefix(name, "process_"), "%s uses %s", title, name)
			}
		}
	}
}

// The tiles that an administrator looks at first have the colors of what they mean, and a state is a
// line of colors over time.
func TestColorsOfTheDashboard(t *testing.T) {
	reason := map[float64]string{1: "orange", 0: "green"}
	metricstest.ExpectColors(t, metricstest.Panels(t, filepath.Join(monitoring, "dashboard.json")), map[string]map[float64]string{
		"Clusters that are not healthy": {0: "green", 1: "orange"},
		"Nodes that are not ready":      {0: "green", 1: "orange"},
		"Clusters with lost volumes":    {0: "green", 1: "red"},
		// As the alert MarekvsVolumeFull.
		"Fullest volume": {0.8: "green", 0.86: "orange", 0.96: "red"},

		"Why is a cluster not ready?":         reason,
		"Why does an update wait?":            reason,
		"Why is no node removed?":             reason,
		"Which volumes are lost or replaced?": reason,
		"Which volumes do not grow?":          reason,
		"Leader":                              {1: "green", 0: "blue"},
	})
}
