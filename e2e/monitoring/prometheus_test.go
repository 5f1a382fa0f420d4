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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
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

// manifests is the folder of the shipped settings of Prometheus.
var manifests = filepath.Join("..", "..", "manifests", "monitoring")

// interval is shorter than the shipped interval, so that rates have samples soon. It limits the
// time of a scrape, too, which is longer than usual on a busy machine.
const interval = "2s"

type object = map[string]any

// scrapeConfig is the configuration of a Prometheus, made from the shipped manifests as Prometheus
// Operator makes it (https://prometheus-operator.dev/).
type scrapeConfig struct {
	dir, token string
	jobs       []object
}

// serviceMonitor has the fields of a ServiceMonitor that are used.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port            string `json:"port"`
			Path            string `json:"path"`
			Scheme          string `json:"scheme"`
			Interval        string `json:"interval"`
			BearerTokenFile string `json:"bearerTokenFile"`
			TLSConfig       struct {
				ServerName string `json:"serverName"`
				CA         struct {
					Secret struct {
						Name string `json:"name"`
						Key  string `json:"key"`
					} `json:"secret"`
				} `json:"ca"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// addOperator adds the operator at an address as the ServiceMonitor names it: the port must be a
// port of the Service that it selects.
func (c *scrapeConfig) addOperator(t *testing.T, address string) {
	t.Helper()
	var monitor serviceMonitor
	readStrictly(t, "service_monitor.yaml", &monitor)
	require.Len(t, monitor.Spec.Endpoints, 1)
	endpoint := monitor.Spec.Endpoints[0]
	services, err := env.Kube.CoreV1().Services(installation.Namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&monitor.Spec.Selector)})
	require.NoError(t, err)
	require.Len(t, services.Items, 1, "services that the ServiceMonitor selects")
	service := services.Items[0]
	require.Len(t, service.Spec.Ports, 1)
	assert.Equal(t, service.Spec.Ports[0].Name, endpoint.Port)
	assert.NotEmpty(t, endpoint.BearerTokenFile)

	authorities := filepath.Join(c.dir, "ca.crt")
	reference := endpoint.TLSConfig.CA.Secret
	testcluster.Eventually(t, time.Minute, "the leader has written the CA", func(ctx context.Context) error {
		secret, err := env.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		if err == nil && len(secret.Data[reference.Key]) == 0 {
			err = fmt.Errorf("no key %q", reference.Key)
		}
		if err != nil {
			return err
		}
		return os.WriteFile(authorities, secret.Data[reference.Key], 0o600)
	})
	c.jobs = append(c.jobs, object{
		"job_name": service.Name, "scheme": endpoint.Scheme, "metrics_path": endpoint.Path, "scrape_interval": interval,
		"authorization": object{"type": "Bearer", "credentials_file": c.token},
		"tls_config":    object{"ca_file": authorities, "server_name": endpoint.TLSConfig.ServerName},
		"static_configs": []object{{"targets": []string{address}, "labels": object{
			"namespace": installation.Namespace, "pod": "nstance-operator-0", "service": service.Name,
		}}},
	})
}

// addServers adds the servers in the form of servers.yaml.
func (c *scrapeConfig) addServers(t *testing.T) {
	t.Helper()
	var config struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			JobName        string `json:"jobName"`
			MetricsPath    string `json:"metricsPath"`
			Scheme         string `json:"scheme"`
			ScrapeInterval string `json:"scrapeInterval"`
			StaticConfigs  []struct {
				Targets []string          `json:"targets"`
				Labels  map[string]string `json:"labels"`
			} `json:"staticConfigs"`
		} `json:"spec"`
	}
	readStrictly(t, "servers.yaml", &config)
	require.Len(t, config.Spec.StaticConfigs, 1)
	require.Contains(t, config.Spec.StaticConfigs[0].Labels, "shard")
	job := object{
		"job_name": config.Spec.JobName, "scheme": strings.ToLower(config.Spec.Scheme), "metrics_path": config.Spec.MetricsPath,
		"scrape_interval": interval,
	}
	var targets []object
	for _, shard := range shards {
		targets = append(targets, object{
			"targets": []string{strings.TrimPrefix(shard.URL(), "http://")}, "labels": object{"shard": shard.ID},
		})
	}
	job["static_configs"] = targets
	c.jobs = append(c.jobs, job)
}

// readStrictly decodes a file. Fields that into does not have are errors.
func readStrictly(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, name))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, into), name)
}

func (c *scrapeConfig) write(t *testing.T, name string, content object) (path string) {
	t.Helper()
	data, err := yaml.Marshal(content)
	require.NoError(t, err)
	path = filepath.Join(c.dir, name)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// shippedRules returns the rules that are shipped, as Prometheus reads them.
func shippedRules(t *testing.T) object {
	t.Helper()
	return parseRules(t, readRules(t))
}

// duration matches the durations of alerts, and the ranges and offsets of expressions.
var duration = regexp.MustCompile(`(\bfor: |\[|\boffset )(\d+)([mh])\b`)

// shortRules returns the rules that are shipped, with two seconds for each minute of their
// durations and nothing else changed.
func shortRules(t *testing.T) object {
	t.Helper()
	shipped := readRules(t)
	alerts := 0
	shortened := duration.ReplaceAllStringFunc(shipped, func(found string) string {
		if strings.HasPrefix(found, "for: ") {
			alerts++
		}
		parts := duration.FindStringSubmatch(found)
		number, err := strconv.Atoi(parts[2])
		require.NoError(t, err)
		return parts[1] + strconv.Itoa(2*number) + map[string]string{"m": "s", "h": "m"}[parts[3]]
	})
	require.Equal(t, strings.Count(shipped, " for: "), alerts, "alerts with a shorter duration")
	return parseRules(t, shortened)
}

func readRules(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "prometheus_rule.yaml"))
	require.NoError(t, err)
	return string(data)
}

func parseRules(t *testing.T, data string) object {
	t.Helper()
	var rules struct{ Spec object }
	require.NoError(t, yaml.Unmarshal([]byte(data), &rules))
	require.NotEmpty(t, rules.Spec)
	return rules.Spec
}
