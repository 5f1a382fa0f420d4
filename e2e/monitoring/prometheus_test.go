// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// findPrometheus returns the path of Prometheus. It is an error that it is missing, unless
// the tests that need it may be skipped.
func findPrometheus() (string, error) {
	binary, err := exec.LookPath("prometheus")
	if err != nil && os.Getenv("NSTANCE_TEST_MONITORING") != "" {
		return "", nil
	}
	return binary, err
}

// runPrometheus runs Prometheus with rules until the end of the test. Where it is missing,
// the test is skipped, unless it was requested.
func runPrometheus(t *testing.T, rules object) prometheusAPI {
	t.Helper()
	binary, err := findPrometheus()
	if err != nil {
		t.Skip("NOT TESTED: prometheus is not installed. 'make debian-packages' installs it, and 'make test-monitoring' needs it")
	}
	require.NotEmpty(t, binary, "prometheus is not installed, run 'make debian-packages'")
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	account := strings.ToLower(t.Name())
	require.NoError(t, os.WriteFile(token, []byte(env.CreateAccount(t, account, "nstance-operator-metrics-reader")), 0o600))
	scraped := &scrapeConfig{dir: dir, token: token}
	scraped.addOperator(t, metricsAddress)
	scraped.addServers(t)
	scraped.write(t, "rules.yaml", rules)
	config := scraped.write(t, "prometheus.yaml", object{
		"global":     object{"scrape_interval": interval, "evaluation_interval": interval},
		"rule_files": []string{"rules.yaml"}, "scrape_configs": scraped.jobs,
	})
	port := 0
	require.NoError(t, controlplane.FillInPorts([]*int{&port}))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	component := controlplane.NewComponent(dir, controlplane.Spec{
		Name: "prometheus",
		Argv: []string{
			binary, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address,
		},
		Ports: []int{port},
		Ready: controlplane.Probe{URL: "http://" + address + "/-/ready"},
	})
	require.NoError(t, component.Start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, component.Stop(context.WithoutCancel(t.Context()))) })
	return prometheusAPI("http://" + address + "/api/v1/")
}

// prometheusAPI is the URL of the API of a Prometheus.
type prometheusAPI string

// sample is one series of the result of a query.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

// number returns the value.
func (s sample) number() (float64, error) {
	text, _ := s.Value[1].(string)
	return strconv.ParseFloat(text, 64)
}

func (p prometheusAPI) query(ctx context.Context, expression string) ([]sample, error) {
	var data struct{ Result []sample }
	err := p.get(ctx, "query?query="+url.QueryEscape(expression), &data)
	return data.Result, err
}

// alerts returns the alerts that a query of ALERTS selects: their names with the shard, if
// they have one, sorted.
func (p prometheusAPI) alerts(ctx context.Context, expression string) ([]string, error) {
	results, err := p.query(ctx, expression)
	names := []string{}
	for _, result := range results {
		names = append(names, strings.TrimSpace(result.Metric["alertname"]+" "+result.Metric["shard"]))
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// failedScrapes returns the targets that a selector selects and that could not be scraped at
// any time since then, sorted.
func (p prometheusAPI) failedScrapes(ctx context.Context, selector string, since time.Time) ([]string, error) {
	results, err := p.query(ctx, fmt.Sprintf("min_over_time(up%s[%ds]) == 0", selector, 1+seconds(time.Since(since))))
	names := []string{}
	for _, result := range results {
		names = append(names, strings.TrimSpace(result.Metric["job"]+" "+result.Metric["shard"]))
	}
	slices.Sort(names)
	return names, err
}

// quiet returns an error unless every rule was evaluated and no alert is active.
func (p prometheusAPI) quiet(ctx context.Context) error {
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Type, Health, LastError, State string }
		}
	}
	if err := p.get(ctx, "rules", &data); err != nil {
		return err
	}
	count := 0
	for _, group := range data.Groups {
		for _, rule := range group.Rules {
			count++
			if rule.Health != "ok" || rule.Type == "alerting" && rule.State != "inactive" {
				return fmt.Errorf("rule %s is %s %s: %s", rule.Name, rule.Health, rule.State, rule.LastError)
			}
		}
	}
	if count == 0 {
		return errors.New("no rules")
	}
	return nil
}

// errors returns the errors of the last scrapes.
func (p prometheusAPI) errors(ctx context.Context) string {
	var data struct {
		ActiveTargets []struct{ ScrapeURL, LastError string }
	}
	if err := p.get(ctx, "targets", &data); err != nil {
		return err.Error()
	}
	var all []string
	for _, target := range data.ActiveTargets {
		if target.LastError != "" {
			all = append(all, target.ScrapeURL+": "+target.LastError)
		}
	}
	return strings.Join(all, "; ")
}

// get decodes the field data of a response.
func (p prometheusAPI) get(ctx context.Context, path string, data any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(p)+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body := struct {
		Error string
		Data  any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, body.Error)
	}
	return nil
}
