// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// manifests is the folder of what is shipped for Prometheus.
var manifests = filepath.Join("..", "..", "manifests", "monitoring")

// interval is shorter than what is shipped, so that rates have samples soon. It limits the
// time of a scrape, too, which is longer than usual on a machine that is busy.
const interval = "2s"

type object = map[string]any

// scrapeConfig is the configuration of a Prometheus, made of what is shipped as Prometheus
// Operator does it.
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
