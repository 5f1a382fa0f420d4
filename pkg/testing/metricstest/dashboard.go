// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package metricstest

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Panel is a panel of a dashboard of Grafana.
type Panel struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	FieldConfig struct {
		Defaults struct {
			Min        *float64 `json:"min"`
			Thresholds struct {
				Steps []threshold `json:"steps"`
			} `json:"thresholds"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// threshold is a color from a value on. Without a value it is the color below all others.
type threshold struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// ExpectAnnotations expects that a dashboard shows when alerts fired, and that these are the alerts of its own
// rules.
func ExpectAnnotations(t *testing.T, path string, alerts []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var dashboard struct {
		Annotations struct {
			List []struct {
				Enable bool   `json:"enable"`
				Expr   string `json:"expr"`
			} `json:"list"`
		} `json:"annotations"`
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	require.Len(t, dashboard.Annotations.List, 1)
	annotation := dashboard.Annotations.List[0]
	assert.True(t, annotation.Enable)
	match := regexp.MustCompile(`^ALERTS\{alertname=~"([^"]+)", alertstate="firing"\}$`).FindStringSubmatch(annotation.Expr)
	require.NotNil(t, match, annotation.Expr)
	// Prometheus anchors the expressions of labels.
	name := regexp.MustCompile("^(?:" + match[1] + ")$")
	for _, alert := range alerts {
		assert.Regexp(t, name, alert)
	}
}

// Panels returns the panels of a dashboard by title, without rows.
func Panels(t *testing.T, path string) map[string]Panel {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var dashboard struct {
		Panels []Panel `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(data, &dashboard))
	panels := map[string]Panel{}
	for _, panel := range dashboard.Panels {
		if panel.Type == "row" {
			continue
		}
		assert.NotContains(t, panels, panel.Title, "panels of the same title")
		panels[panel.Title] = panel
	}
	require.NotEmpty(t, panels)
	return panels
}

// Color returns the color that the panel gives to a value, as
// https://grafana.com/docs/grafana/latest/panels-visualizations/configure-thresholds/ describes.
func (p Panel) Color(value float64) string {
	color := ""
	for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
		if step.Value == nil || value >= *step.Value {
			color = step.Color
		}
	}
	return color
}

// ExpectColors expects that each panel is described, and that panels which show a state, as a number
// or over time, have thresholds: Grafana's own are green below 80, and red from 80 on.
func ExpectColors(t *testing.T, panels map[string]Panel, want map[string]map[float64]string) {
	t.Helper()
	for title, panel := range panels {
		assert.NotEmpty(t, panel.Description, "description of %s", title)
		if panel.Type == "stat" || panel.Type == "state-timeline" {
			assert.NotEmpty(t, want[title], "expected colors of %s", title)
		}
	}
	for title, colors := range want {
		require.Contains(t, panels, title)
		for value, color := range colors {
			assert.Equal(t, color, panels[title].Color(value), "%s: color of %v", title, value)
			if lowest := panels[title].FieldConfig.Defaults.Min; lowest != nil {
				assert.GreaterOrEqual(t, value, *lowest, "%s: lowest value", title)
			}
		}
	}
}
