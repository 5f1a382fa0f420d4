// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// complete returns the default options with valid values for required options.
func complete() *Options {
	options := DefaultOptions()
	options.ClusterID, options.Namespace = "prod", "nstance-system"
	options.CAPIKubeconfigServer = "https://kubernetes.default.svc:443"
	return options
}

func TestValidate(t *testing.T) {
	if err := complete().Validate(); err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	tests := map[string]struct {
		change func(*Options)
		want   string
	}{
		"no cluster id":                    {func(o *Options) { o.ClusterID = "" }, "--cluster-id: must not be empty"},
		"a cluster id in capitals":         {func(o *Options) { o.ClusterID = "Prod" }, `--cluster-id: "Prod" must consist of`},
		"a cluster id with two hyphens":    {func(o *Options) { o.ClusterID = "pr--od" }, `--cluster-id: "pr--od" must not contain consecutive hyphens`},
		"no tenant":                        {func(o *Options) { o.Tenant = "" }, "--tenant: must not be empty"},
		"a tenant with a dot":              {func(o *Options) { o.Tenant = "a.b" }, `--tenant: "a.b" must consist of`},
		"a cluster name of 64 characters":  {func(o *Options) { o.ClusterID, o.Tenant = strings.Repeat("a", 32), strings.Repeat("b", 30) }, "has 64 characters, at most 63 are allowed"},
		"no namespace":                     {func(o *Options) { o.Namespace = "" }, "--namespace: "},
		"a namespace with a slash":         {func(o *Options) { o.Namespace = "a/b" }, `--namespace: "a/b": `},
		"no ConfigMap of shards":           {func(o *Options) { o.ShardsConfigMap = "" }, "--shards-configmap: "},
		"a ConfigMap of shards in caps":    {func(o *Options) { o.ShardsConfigMap = "Shards" }, `--shards-configmap: "Shards": `},
		"a bad ConfigMap of the CA":        {func(o *Options) { o.CAConfigMap = "a b" }, `--ca-configmap: "a b": `},
		"a bad Secret":                     {func(o *Options) { o.CertSecret = "-" }, `--cert-secret: "-": `},
		"a bad Secret of the webhook":      {func(o *Options) { o.WebhookSecret = "a/b" }, `--webhook-secret: "a/b": `},
		"a bad webhook configuration":      {func(o *Options) { o.WebhookConfiguration = "a b" }, `--webhook-configuration: "a b": `},
		"a bad ServiceAccount":             {func(o *Options) { o.CAPIServiceAccount = "a_b" }, `--capi-serviceaccount: "a_b": `},
		"an endpoint without a scheme":     {func(o *Options) { o.CAPIEndpoint = "host:6443" }, `--capi-endpoint: `},
		"an endpoint without TLS":          {func(o *Options) { o.CAPIEndpoint = "http://host:6443" }, `--capi-endpoint: "http://host:6443" must be of the form https://host:port`},
		"a kubeconfig without an endpoint": {func(o *Options) { o.WorkloadKubeconfig = "/etc/workload/kubeconfig" }, "--workload-kubeconfig: needs --capi-endpoint"},
		"no server for the kubeconfig":     {func(o *Options) { o.CAPIKubeconfigServer = "" }, "--capi-kubeconfig-server: "},
		"a retry period of nothing":        {func(o *Options) { o.RetryPeriod = 0 }, "--leader-elect-retry-period: 0s must be more than 0"},
		"a renew deadline within jitter":   {func(o *Options) { o.RenewDeadline = 960 * time.Millisecond }, "--leader-elect-renew-deadline: 960ms must be more than 960ms"},
		"a lease shorter than its renew":   {func(o *Options) { o.LeaseDuration = 10 * time.Second }, "--leader-elect-lease-duration: 10s must be more than the renew deadline 10s"},
		"a lease of less than a second": {func(o *Options) {
			o.RetryPeriod, o.RenewDeadline, o.LeaseDuration = 100*time.Millisecond, 500*time.Millisecond, 900*time.Millisecond
		}, "--leader-elect-lease-duration: 900ms must be at least 1s"},
		"an interval of nothing":   {func(o *Options) { o.ShardProbeInterval = 0 }, "--shard-probe-interval: 0s must be 1s to 30s"},
		"too short an interval":    {func(o *Options) { o.ShardProbeInterval = 999 * time.Millisecond }, "--shard-probe-interval: 999ms must be 1s to 30s"},
		"too long an interval":     {func(o *Options) { o.ShardProbeInterval = 31 * time.Second }, "--shard-probe-interval: 31s must be 1s to 30s"},
		"a negative import delay":  {func(o *Options) { o.ImportDelay = -1 }, "--import-delay: -1ns must not be negative"},
		"a negative resync period": {func(o *Options) { o.ResyncPeriod = -1 }, "--resync-period: -1ns must not be negative"},
		"a negative limit":         {func(o *Options) { o.OnDemandLimit = -1 }, "--on-demand-limit: -1 must not be negative"},
		"a bad namespace":          {func(o *Options) { o.OnDemandNamespaces = []string{"team", "a_b"} }, `--on-demand-namespaces: "a_b": `},
		"all namespaces and one":   {func(o *Options) { o.OnDemandNamespaces = []string{"team", "*"} }, `--on-demand-namespaces: "*": `},
		"a bad group":              {func(o *Options) { o.OnDemandGroups = []string{"GPU"} }, `--on-demand-groups: "GPU": `},
		"a negative drain timeout": {func(o *Options) { o.OnDemandDrainTimeout = -1 }, "--on-demand-drain-timeout: -1ns must be 0s to 8760h0m0s"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			options := complete()
			test.change(options)
			err := options.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("one wrong option gives several errors: %v", err)
			}
		})
	}
}

func TestValidateNamesEveryWrongOption(t *testing.T) {
	options := complete()
	options.ClusterID, options.CertSecret, options.ResyncPeriod = "", "", -1
	err := options.Validate()
	for _, flag := range []string{"--cluster-id", "--cert-secret", "--resync-period"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not in the error %v", flag, err)
		}
	}
}

// Servers that have a group in their buckets at the same time report it up to a poll later than each other,
// and the operator needs a moment to see it.
func TestImportsWaitForServersThatReadABucket(t *testing.T) {
	assert.Greater(t, DefaultOptions().ImportDelay, backend.PollInterval(backend.S3)+2*time.Second)
}

func TestLongestClusterName(t *testing.T) {
	options := complete()
	options.ClusterID, options.Tenant = strings.Repeat("a", 32), strings.Repeat("b", 29)
	if err := options.Validate(); err != nil {
		t.Error(err)
	}
	if got := options.ClusterName(); len(got) != 63 || !strings.Contains(got, "a--b") {
		t.Errorf("the cluster is called %q", got)
	}
}

func parse(t *testing.T, environment map[string]string, args ...string) (*Options, error) {
	t.Helper()
	options := DefaultOptions()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(flags)
	flags.Bool("version", false, "as cobra adds it")
	require.NoError(t, flags.Parse(args))
	return options, FromEnvironment(flags, func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	})
}

func TestFromEnvironment(t *testing.T) {
	options, err := parse(t, map[string]string{
		"NSTANCE_CLUSTER_ID":                  "from-env",
		"NSTANCE_TENANT":                      "from-env",
		"NSTANCE_NAMESPACE":                   "from-env",
		"NSTANCE_CA_CONFIGMAP":                "from-env",
		"NSTANCE_CERT_SECRET":                 "from-env",
		"NSTANCE_CAPI_ENDPOINT":               "https://from-env",
		"NSTANCE_CAPI_SERVICEACCOUNT":         "from-env",
		"NSTANCE_WORKLOAD_KUBECONFIG":         "from-env",
		"NSTANCE_LEADER_ELECT_LEASE_DURATION": "1m",
		"CLUSTER_ID":                          "without-prefix",
		"NSTANCE_VERSION":                     "not a flag",
	}, "--tenant=from-flag")
	require.NoError(t, err)
	for what, got := range map[string]string{
		"cluster id": options.ClusterID, "namespace": options.Namespace, "CA": options.CAConfigMap, "certificate": options.CertSecret,
		"endpoint": strings.TrimPrefix(options.CAPIEndpoint, "https://"), "account": options.CAPIServiceAccount,
		"kubeconfig of the workload cluster": options.WorkloadKubeconfig,
	} {
		if got != "from-env" {
			t.Errorf("%s is %q, want what the environment says", what, got)
		}
	}
	if options.Tenant != "from-flag" {
		t.Errorf("tenant is %q, want the flag's", options.Tenant)
	}
	if options.LeaseDuration != time.Minute {
		t.Errorf("lease duration is %s", options.LeaseDuration)
	}
	if options.ShardsConfigMap != "nstance-shards" {
		t.Errorf("ConfigMap of shards is %q, want the default", options.ShardsConfigMap)
	}
}

// A flag takes precedence over the environment even if its value is the default.
func TestFromEnvironmentGivesWayToAFlagThatRepeatsTheDefault(t *testing.T) {
	options, err := parse(t, map[string]string{"NSTANCE_TENANT": "from-env"}, "--tenant=default")
	if err != nil || options.Tenant != "default" {
		t.Errorf("tenant is %q, error %v", options.Tenant, err)
	}
}

func TestFromEnvironmentNamesEveryBadVariable(t *testing.T) {
	_, err := parse(t, map[string]string{"NSTANCE_RESYNC_PERIOD": "soon", "NSTANCE_LEADER_ELECT_RETRY_PERIOD": ""})
	for _, name := range []string{"NSTANCE_RESYNC_PERIOD", "NSTANCE_LEADER_ELECT_RETRY_PERIOD"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not in the error %v", name, err)
		}
	}
}

func TestCompleteKeepsANamespaceThatIsSet(t *testing.T) {
	options := complete()
	if err := options.Complete(); err != nil || options.Namespace != "nstance-system" {
		t.Errorf("namespace is %q, error %v", options.Namespace, err)
	}
}

// Cluster API reaches its cluster at the address that Pods use, without DNS.
func TestCompleteSetsTheServerOfPods(t *testing.T) {
	for _, test := range []struct{ host, port, set, want string }{
		{"10.96.0.1", "443", "", "https://10.96.0.1:443"},
		{"fd00::1", "6443", "", "https://[fd00::1]:6443"},
		{"", "", "", "https://kubernetes.default.svc:443"},
		{"10.96.0.1", "443", "https://192.0.2.1:6443", "https://192.0.2.1:6443"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", test.host)
		t.Setenv("KUBERNETES_SERVICE_PORT", test.port)
		options := complete()
		options.CAPIKubeconfigServer = test.set
		require.NoError(t, options.Complete())
		require.NoError(t, options.Validate())
		if options.CAPIKubeconfigServer != test.want {
			t.Errorf("%+v: the server is %q", test, options.CAPIKubeconfigServer)
		}
	}
}

func TestEndpoint(t *testing.T) {
	options := complete()
	if got, err := options.endpoint(); err != nil || got != (v1beta1.APIEndpoint{Host: "kubernetes.default.svc", Port: 443}) {
		t.Errorf("got %+v, error %v", got, err)
	}
	options.CAPIEndpoint = "https://external:6443"
	if got, err := options.endpoint(); err != nil || got != (v1beta1.APIEndpoint{Host: "external", Port: 6443}) {
		t.Errorf("got %+v, error %v", got, err)
	}
}

func TestParseEndpoint(t *testing.T) {
	for address, want := range map[string]v1beta1.APIEndpoint{
		"https://host":                     {Host: "host", Port: 443},
		"https://host:6443":                {Host: "host", Port: 6443},
		"https://[2001:db8::1]:6443":       {Host: "2001:db8::1", Port: 6443},
		"https://192.0.2.1/k8s/clusters/a": {Host: "192.0.2.1", Port: 443},
		"https://host:65535":               {Host: "host", Port: 65535},
		"https://host:0":                   {},
		"https://host:65536":               {},
		"https://host:https":               {},
		"https://:6443":                    {},
		"https://":                         {},
		"http://host":                      {},
		"host:6443":                        {},
		"host":                             {},
		"":                                 {},
		"https://a b":                      {},
		"https://user:password@host:6443":  {},
	} {
		got, err := parseEndpoint(address)
		if got != want || (err == nil) != (want.Host != "") {
			t.Errorf("parseEndpoint(%q) = %+v, %v; want %+v", address, got, err, want)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, address := range []string{"https://host:6443", "https://[::1]", "https://host:0", "https://user@host", "host", "https://%zz"} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		got, err := parseEndpoint(address)
		if err != nil {
			if got != (v1beta1.APIEndpoint{}) {
				t.Errorf("parseEndpoint(%q) returned %+v with the error %v", address, got, err)
			}
			return
		}
		if got.Host == "" || got.Port < 1 || got.Port > 65535 {
			t.Errorf("parseEndpoint(%q) = %+v", address, got)
		}
		if strings.ContainsAny(got.Host, "/@ ") {
			t.Errorf("parseEndpoint(%q) has the host %q", address, got.Host)
		}
	})
}
