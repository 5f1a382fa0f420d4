// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/flagenv"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/operator/internal/controllers/importer"
	"nstance.dev/operator/pkg/operator/internal/controllers/ondemand"
	"nstance.dev/operator/pkg/operator/shard/informer"
)

// Options are the settings of the operator. Each is a flag, and an environment
// variable of the same name with the prefix NSTANCE_.
type Options struct {
	// Kubeconfig is the path of a file; empty means the Pod's ServiceAccount.
	Kubeconfig string
	// Namespace is the namespace of all objects of the operator.
	Namespace string
	// ClusterID and Tenant name the cluster: {ClusterID}--{Tenant}.
	ClusterID, Tenant string
	// HTTPAddress serves /healthz and /readyz.
	HTTPAddress string
	// MetricsAddress serves /metrics over TLS to clients with access (daemon.Access). If it is
	// empty, HTTPAddress serves /metrics to everyone.
	MetricsAddress string
	// WebhookAddress serves the admission webhook.
	WebhookAddress string

	// ShardsConfigMap and CAConfigMap name the objects with the shards' endpoints and
	// their CA.
	ShardsConfigMap, CAConfigMap string
	// RequireServerURI makes the operator refuse servers whose certificate names no shard.
	RequireServerURI bool
	// NonceSecret, KeySecret and CertSecret name the Secrets with the nonce for the
	// registration, the operator's key and its client certificate.
	NonceSecret, KeySecret, CertSecret string
	// WebhookSecret names the Secret with the certificate of the admission webhook.
	WebhookSecret string
	// WebhookConfiguration names the ValidatingWebhookConfiguration, which has no namespace.
	WebhookConfiguration string

	// CAPIEndpoint is the URL of the API server of an external workload cluster; empty if the
	// Nodes are in the operator's own cluster.
	CAPIEndpoint string
	// WorkloadKubeconfig is the path of a kubeconfig for the Nodes and Pods of an external
	// cluster. Without it, the operator cannot read them.
	WorkloadKubeconfig string
	// CAPIServiceAccount is the ServiceAccount whose tokens Cluster API uses.
	CAPIServiceAccount string
	// CAPIKubeconfigServer is the URL of the API server in Cluster API's kubeconfig; empty for the
	// address that Pods use.
	CAPIKubeconfigServer string

	// OnDemandLimit is the maximum number of machines of one group for the Pods of one
	// namespace; 0 for no limit.
	OnDemandLimit int
	// OnDemandDrainTimeout is the timeout for the drain of a Pod's machine; 0 for no limit.
	OnDemandDrainTimeout time.Duration
	// Only Pods in OnDemandNamespaces may request machines, ondemand.AllNamespaces alone for all,
	// and only of OnDemandGroups, an empty list for all.
	OnDemandNamespaces, OnDemandGroups []string

	election.Timing
	// ShardProbeInterval is the time between two lists of a shard's groups. A shard that does
	// not respond within this time counts as unreachable.
	ShardProbeInterval time.Duration
	// ImportDelay is the time between the appearance of a group on a shard and its import.
	ImportDelay time.Duration
	// ResyncPeriod is the time between two syncs of an unchanged object.
	ResyncPeriod time.Duration
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() *Options {
	return &Options{
		Tenant:               "default",
		HTTPAddress:          ":8081",
		MetricsAddress:       ":8443",
		WebhookAddress:       ":9443",
		ShardsConfigMap:      "nstance-shards",
		CAConfigMap:          "nstance-cluster-ca",
		NonceSecret:          "nstance-operator-nonce",
		KeySecret:            "nstance-operator-key",
		CertSecret:           "nstance-operator-cert",
		WebhookSecret:        "nstance-webhook-cert",
		WebhookConfiguration: "nstance-operator",
		CAPIServiceAccount:   "nstance-capi-workload",
		OnDemandLimit:        100,
		OnDemandDrainTimeout: time.Hour,
		Timing:               election.DefaultTiming(),
		ShardProbeInterval:   informer.DefaultProbeInterval,
		ImportDelay:          importer.DefaultDelay,
		ResyncPeriod:         10 * time.Minute,
	}
}

// AddFlags adds a flag for each option.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig file; empty for the Pod's own account")
	flags.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace of the operator's objects; empty for the Pod's own")
	flags.StringVar(&o.ClusterID, "cluster-id", o.ClusterID, "id of the cluster (required)")
	flags.StringVar(&o.Tenant, "tenant", o.Tenant, "id of the tenant")
	flags.StringVar(&o.HTTPAddress, "http-address", o.HTTPAddress, "address that serves /healthz and /readyz")
	flags.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "address that serves /metrics over TLS to clients whose token may get it; empty to serve it at the HTTP address to everyone")
	flags.StringVar(&o.WebhookAddress, "webhook-address", o.WebhookAddress, "address that serves the admission webhook")
	flags.StringVar(&o.ShardsConfigMap, "shards-configmap", o.ShardsConfigMap, "ConfigMap with the shards' endpoints")
	flags.StringVar(&o.CAConfigMap, "ca-configmap", o.CAConfigMap, "ConfigMap with the shards' CA in ca.crt")
	flags.BoolVar(&o.RequireServerURI, "require-server-uri", o.RequireServerURI, "refuse shard servers whose certificate does not name their shard, as of other versions")
	flags.StringVar(&o.NonceSecret, "nonce-secret", o.NonceSecret, "Secret with the nonce to register with in nonce.jwt")
	flags.StringVar(&o.KeySecret, "key-secret", o.KeySecret, "Secret that the operator keeps the key of its client certificate in")
	flags.StringVar(&o.CertSecret, "cert-secret", o.CertSecret, "Secret with the operator's client certificate in tls.crt and tls.key")
	flags.StringVar(&o.WebhookSecret, "webhook-secret", o.WebhookSecret, "Secret that the admission webhook's certificate is kept in")
	flags.StringVar(&o.WebhookConfiguration, "webhook-configuration", o.WebhookConfiguration, "ValidatingWebhookConfiguration of this operator, in which it writes the CA")
	flags.StringVar(&o.CAPIEndpoint, "capi-endpoint", o.CAPIEndpoint, "URL of the API server of an external workload cluster; its kubeconfig Secret is then left alone")
	flags.StringVar(&o.WorkloadKubeconfig, "workload-kubeconfig", o.WorkloadKubeconfig, "kubeconfig file for the Nodes and Pods of the cluster of --capi-endpoint")
	flags.StringVar(&o.CAPIServiceAccount, "capi-serviceaccount", o.CAPIServiceAccount, "ServiceAccount whose tokens Cluster API's controllers get")
	flags.StringVar(&o.CAPIKubeconfigServer, "capi-kubeconfig-server", o.CAPIKubeconfigServer, "URL of the API server as Cluster API's controllers reach it; empty for the address that Pods use")
	flags.IntVar(&o.OnDemandLimit, "on-demand-limit", o.OnDemandLimit, "how many machines the Pods of one namespace may have of one group; 0 for any number")
	flags.DurationVar(&o.OnDemandDrainTimeout, "on-demand-drain-timeout", o.OnDemandDrainTimeout, "how long Cluster API may drain the machine of a Pod; 0 for any time")
	flags.StringSliceVar(&o.OnDemandNamespaces, "on-demand-namespaces", o.OnDemandNamespaces, "namespaces whose Pods may request machines, separated by commas; empty for none, * for all")
	flags.StringSliceVar(&o.OnDemandGroups, "on-demand-groups", o.OnDemandGroups, "groups of which Pods may request machines, separated by commas; empty for all")
	o.Timing.AddFlags(flags)
	flags.DurationVar(&o.ShardProbeInterval, "shard-probe-interval", o.ShardProbeInterval, "after what time the groups of every shard are listed again, 1s to 30s; a shard that does not respond within the same time, or within 10s, is unreachable")
	flags.DurationVar(&o.ImportDelay, "import-delay", o.ImportDelay, "after what time a group that appears on a shard is imported; longer than the servers need to read a new configuration, which they do every 2s from a folder, and every 15s from a bucket")
	flags.DurationVar(&o.ResyncPeriod, "resync-period", o.ResyncPeriod, "after what time every object is looked at again")
}

// FromEnvironment sets each flag that was not given on the command line from its environment
// variable, for example --cluster-id from NSTANCE_CLUSTER_ID.
func FromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	return flagenv.Set(flags, lookup)
}

// serviceURL is the URL of the API server in any cluster, for clients with the cluster's DNS.
const serviceURL = "https://kubernetes.default.svc:443"

// podURL returns the URL of the API server that the kubelet gives to Pods
// (https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/). It needs no DNS: Cluster API
// would drain and delete nothing while the cluster's DNS is away, such as at the start of a cluster.
func podURL() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return serviceURL
	}
	return "https://" + net.JoinHostPort(host, port)
}

// Complete sets Namespace to the namespace of the Pod, and CAPIKubeconfigServer to the API server of the
// Pod, if they are empty.
func (o *Options) Complete() error {
	if o.CAPIKubeconfigServer == "" {
		o.CAPIKubeconfigServer = podURL()
	}
	if o.Namespace != "" {
		return nil
	}
	var err error
	o.Namespace, err = election.PodNamespace()
	return err
}

// Validate returns the errors of all invalid options. Each error names the flag.
func (o *Options) Validate() error {
	var wrong []error
	refuse := func(flag, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...)))
	}
	if err := identifier.Validate(o.ClusterID); err != nil {
		refuse("cluster-id", "%w", err)
	}
	if err := identifier.Validate(o.Tenant); err != nil {
		refuse("tenant", "%w", err)
	}
	// The name of the Cluster is used as the value of a label
	// (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set).
	if name := o.ClusterName(); len(name) > validation.LabelValueMaxLength {
		refuse("cluster-id", "%q, made of cluster id and tenant, has %d characters, at most %d are allowed", name, len(name), validation.LabelValueMaxLength)
	}
	if problems := validation.IsDNS1123Label(o.Namespace); len(problems) > 0 {
		refuse("namespace", "%q: %s", o.Namespace, strings.Join(problems, "; "))
	}
	if o.CAPIEndpoint != "" {
		if _, err := parseEndpoint(o.CAPIEndpoint); err != nil {
			refuse("capi-endpoint", "%w", err)
		}
	}
	if o.WorkloadKubeconfig != "" && o.CAPIEndpoint == "" {
		// Otherwise Cluster API would look for the Nodes in the operator's cluster.
		refuse("workload-kubeconfig", "needs --capi-endpoint, the API server of the same cluster")
	}
	if _, err := parseEndpoint(o.CAPIKubeconfigServer); err != nil {
		refuse("capi-kubeconfig-server", "%w", err)
	}
	for _, object := range []struct{ flag, name string }{
		{"shards-configmap", o.ShardsConfigMap},
		{"ca-configmap", o.CAConfigMap},
		{"nonce-secret", o.NonceSecret},
		{"key-secret", o.KeySecret},
		{"cert-secret", o.CertSecret},
		{"webhook-secret", o.WebhookSecret},
		{"webhook-configuration", o.WebhookConfiguration},
		{"capi-serviceaccount", o.CAPIServiceAccount},
	} {
		if problems := validation.IsDNS1123Subdomain(object.name); len(problems) > 0 {
			refuse(object.flag, "%q: %s", object.name, strings.Join(problems, "; "))
		}
	}
	if o.OnDemandLimit < 0 {
		refuse("on-demand-limit", "%d must not be negative", o.OnDemandLimit)
	}
	for _, namespace := range o.OnDemandNamespaces {
		if namespace == ondemand.AllNamespaces && len(o.OnDemandNamespaces) == 1 {
			continue
		}
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			refuse("on-demand-namespaces", "%q: %s", namespace, strings.Join(problems, "; "))
		}
	}
	for _, group := range o.OnDemandGroups {
		if err := identifier.Validate(group); err != nil {
			refuse("on-demand-groups", "%q: %v", group, err)
		}
	}
	if o.OnDemandDrainTimeout < 0 || o.OnDemandDrainTimeout > ondemand.MaxDrainTimeout {
		refuse("on-demand-drain-timeout", "%s must be 0s to %s", o.OnDemandDrainTimeout, ondemand.MaxDrainTimeout)
	}
	o.Timing.Validate(refuse)
	if o.ShardProbeInterval < informer.MinProbeInterval || o.ShardProbeInterval > informer.MaxProbeInterval {
		refuse("shard-probe-interval", "%s must be %s to %s", o.ShardProbeInterval, informer.MinProbeInterval, informer.MaxProbeInterval)
	}
	if o.ImportDelay < 0 {
		refuse("import-delay", "%s must not be negative", o.ImportDelay)
	}
	if o.ResyncPeriod < 0 {
		refuse("resync-period", "%s must not be negative", o.ResyncPeriod)
	}
	return errors.Join(wrong...)
}

// ClusterName returns the name of the Cluster and of the NstanceCluster.
func (o *Options) ClusterName() string {
	return o.ClusterID + identifier.Separator + o.Tenant
}

// endpoint returns the API server of the workload cluster.
func (o *Options) endpoint() (v1beta1.APIEndpoint, error) {
	if o.CAPIEndpoint != "" {
		return parseEndpoint(o.CAPIEndpoint)
	}
	return parseEndpoint(o.CAPIKubeconfigServer)
}

// parseEndpoint returns host and port of the URL of an API server. The default port is 443.
func parseEndpoint(address string) (v1beta1.APIEndpoint, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return v1beta1.APIEndpoint{}, fmt.Errorf("%q is not a URL: %w", address, err)
	}
	if parsed.Scheme != "https" || parsed.Hostname() == "" || parsed.User != nil {
		return v1beta1.APIEndpoint{}, fmt.Errorf("%q must be of the form https://host:port", parsed.Redacted())
	}
	port := 443
	if text := parsed.Port(); text != "" {
		if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
			return v1beta1.APIEndpoint{}, fmt.Errorf("port of %q must be between 1 and 65535", parsed.Redacted())
		}
	}
	return v1beta1.APIEndpoint{Host: parsed.Hostname(), Port: int32(port)}, nil
}
