// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// foreign are metrics of component-base in the notation of the document. They are registered
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
	documented := metricstest.Documented(t, filepath.Join("..", "..", "docs", "reference.md"))
	want := append(registered(t), foreign...)
	slices.Sort(want)
	assert.Equal(t, want, documented)
}

// With names of Nodes, Pods and instances as labels, each would have its own series.
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

const monitoring = "../../manifests/monitoring"

// rule is a rule of a PrometheusRule.
type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// rules returns the rules in manifests.
func rules(t *testing.T) (records, alerts []rule) {
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
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				records = append(records, rule)
			} else {
				alerts = append(alerts, rule)
			}
		}
	}
	require.NotEmpty(t, alerts)
	return records, alerts
}

// read decodes a file of YAML. Fields that object does not have are errors.
func read(t *testing.T, name string, object any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(monitoring, name))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, object), name)
}

// Each alert has a section in the document that explains what to do, and the document has no
// sections for other alerts.
func TestEveryAlertHasARunbook(t *testing.T) {
	_, alerts := rules(t)
	var want, got []string
	for _, alert := range alerts {
		want = append(want, alert.Alert)
		assert.Equal(t, "docs/monitoring.md#"+strings.ToLower(alert.Alert), alert.Annotations["runbook_url"], alert.Alert)
		assert.Contains(t, []string{"critical", "warning", "info"}, alert.Labels["severity"], alert.Alert)
	}
	for _, match := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(
		metricstest.Section(t, "../../docs/monitoring.md", "Alerts"), -1) {
		got = append(got, match[1])
	}
	assert.ElementsMatch(t, want, got, "alerts with a runbook in docs/monitoring.md")
	metricstest.ExpectAnnotations(t, filepath.Join(monitoring, "dashboard.json"), want)
}

// Each alert fires in one test and is silent in another.
func TestEveryAlertIsTested(t *testing.T) {
	_, alerts := rules(t)
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
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		require.NotEmpty(t, test.InputSeries, test.Name)
		for _, alert := range test.Alerts {
			if len(alert.Expected) > 0 {
				fires[alert.Name] = true
			} else {
				silent[alert.Name] = true
			}
		}
	}
	var names []string
	for _, alert := range alerts {
		names = append(names, alert.Alert)
	}
	assert.ElementsMatch(t, names, slices.Collect(maps.Keys(fires)), "alerts that fire in a test")
	assert.ElementsMatch(t, names, slices.Collect(maps.Keys(silent)), "alerts that are silent in a test")
}

// panel is a panel or a row of a dashboard.
type panel struct {
	Title   string `json:"title"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
	Panels []panel `json:"panels"`
}

// queries returns the queries of the dashboard by the title of their panels.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	require.NoError(t, err)
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	all := map[string][]string{}
	var add func(panels []panel)
	add = func(panels []panel) {
		for _, panel := range panels {
			for _, target := range panel.Targets {
				all[panel.Title] = append(all[panel.Title], target.Expr)
			}
			add(panel.Panels)
		}
	}
	add(dashboard.Panels)
	require.NotEmpty(t, all)
	return all
}

// metric matches the names of metrics and of recording rules in an expression.
var metric = regexp.MustCompile(`\b(nstance_[a-z0-9_]+|nstance:[a-z0-9_:]+|controller_[a-z0-9_]+_[a-z]+|workqueue_[a-z_]+|rest_client_[a-z_]+|leader_election_[a-z_]+|process_[a-z_]+)`)

// Alerts, recording rules and panels use metrics that exist.
func TestEveryQueryUsesMetricsThatExist(t *testing.T) {
	known := append(registered(t), metricstest.Documented(t, "../../docs/server-reference.md")...)
	known = append(known, foreign...)
	records, alerts := rules(t)
	all := queries(t)
	for _, rule := range slices.Concat(records, alerts) {
		if rule.Record != "" {
			known = append(known, rule.Record)
		}
		all[rule.Alert+rule.Record] = append(all[rule.Alert+rule.Record], rule.Expr)
	}
	for title, expressions := range all {
		for _, expression := range expressions {
			names := metric.FindAllString(labelValues.ReplaceAllString(expression, ""), -1)
			assert.NotEmpty(t, names, "%s has no metric: %s", title, expression)
			for _, name := range names {
				assert.True(t, exists(known, name), "%s uses %s", title, name)
			}
		}
	}
}

// Panels of the operator show the operators of the chosen namespaces: several have metrics of the same names.
// Panels with a line for each group show the chosen groups: a cluster may have a thousand.
func TestPanelsAreOfTheChosenOperators(t *testing.T) {
	for title, expressions := range queries(t) {
		for _, expression := range expressions {
			for _, found := range metric.FindAllStringIndex(expression, -1) {
				if !strings.HasPrefix(expression[found[0]:], "nstance_server_") {
					assert.True(t, strings.HasPrefix(expression[found[1]:], `{namespace=~"$namespace"`), "%s: %s", title, expression)
				}
			}
			if strings.HasPrefix(expression, "sum by (group") || strings.HasPrefix(expression, "max by (group") {
				assert.Contains(t, expression, `group=~"$group"`, title)
			}
		}
	}
}

// labelValues matches the values of labels.
var labelValues = regexp.MustCompile(`"[^"]*"`)

// exists reports whether name is a known metric, or a part of a known histogram.
func exists(known []string, name string) bool {
	if slices.ContainsFunc(known, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return pattern == name || isPrefix && strings.HasPrefix(name, prefix)
	}) {
		return true
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, cut := strings.CutSuffix(name, suffix); cut && strings.HasSuffix(base, "_seconds") && slices.Contains(known, base) {
			return true
		}
	}
	return strings.HasPrefix(name, "process_")
}

// The tiles that an administrator looks at first have the colors of what they mean, and a state is a
// line of colors over time.
func TestColorsOfTheDashboard(t *testing.T) {
	const hour = 3600
	metricstest.ExpectColors(t, metricstest.Panels(t, filepath.Join(monitoring, "dashboard.json")), map[string]map[float64]string{
		"Shards that are not connected": {0: "green", 1: "red", 3: "red"},
		"Instances missing":             {0: "green", 1: "orange", 12: "orange"},
		"Blocked drains":                {0: "green", 1: "orange", 12: "orange"},
		// An expired certificate has a negative time, and a missing one is as old as the epoch.
		"Client certificate expires in": {16 * hour: "green", 2 * hour: "red", 0: "red", -hour: "red", -490_000 * hour: "red"},

		"Which shard is not connected, and since when?": {1: "green", 0: "red"},
		"Why is a pool not at its size?":                {1: "orange", 0: "green"},
		"Leader":                                        {1: "green", 0: "blue"},
		"Leaders by shard":                              {1: "green", 0: "red", 2: "red"},
	})
}
