// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
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

// monitoring is the folder of what is shipped for Prometheus.
var monitoring = filepath.Join("..", "..", "manifests", "monitoring")

// interval is shorter than what is shipped, so that rates have samples soon.
const interval = "1s"

type object = map[string]any

// scrapeConfig is the configuration of a Prometheus, made of what is shipped as Prometheus
// Operator does it.
type scrapeConfig struct {
	dir, token string
	jobs       []object
}

func newScrapeConfig(t *testing.T, dir, token string) *scrapeConfig {
	t.Helper()
	return &scrapeConfig{dir: dir, token: token}
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

// addOperator adds the operator at an address as the ServiceMonitor names it: the port must
// be that of the Service it selects.
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

// addServers adds the servers as servers.yaml names one.
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
	data, err := os.ReadFile(filepath.Join(monitoring, name))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(data, into), name)
}

// start runs Prometheus with the rules that are shipped until the end of the test.
func (c *scrapeConfig) start(t *testing.T, binary string) prometheusAPI {
	t.Helper()
	var rules struct{ Spec object }
	data, err := os.ReadFile(filepath.Join(monitoring, "prometheus_rule.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(data, &rules))
	c.write(t, "rules.yaml", rules.Spec)
	config := c.write(t, "prometheus.yaml", object{
		"global":     object{"scrape_interval": interval, "evaluation_interval": interval},
		"rule_files": []string{"rules.yaml"}, "scrape_configs": c.jobs,
	})
	port := 0
	require.NoError(t, controlplane.FillInPorts([]*int{&port}))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	component := controlplane.NewComponent(c.dir, controlplane.Spec{
		Name: "prometheus",
		Argv: []string{
			binary, "--config.file", config, "--storage.tsdb.path", filepath.Join(c.dir, "data"), "--web.listen-address", address,
		},
		Ports: []int{port},
		Ready: controlplane.Probe{URL: "http://" + address + "/-/ready"},
	})
	require.NoError(t, component.Start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, component.Stop(context.WithoutCancel(t.Context()))) })
	return prometheusAPI("http://" + address + "/api/v1/")
}

func (c *scrapeConfig) write(t *testing.T, name string, content object) (path string) {
	t.Helper()
	data, err := yaml.Marshal(content)
	require.NoError(t, err)
	path = filepath.Join(c.dir, name)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// prometheusAPI is the URL of the API of a Prometheus.
type prometheusAPI string

// sample is one series of the result of a query.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (p prometheusAPI) query(ctx context.Context, expression string) ([]sample, error) {
	var data struct{ Result []sample }
	err := p.get(ctx, "query?query="+url.QueryEscape(expression), &data)
	return data.Result, err
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
