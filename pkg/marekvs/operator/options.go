// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"nstance.dev/operator/pkg/base/flagenv"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/observe"
)

// EnvironmentPrefix is the prefix of the environment variables of the flags.
const EnvironmentPrefix = "MAREKVS_OPERATOR_"

// Options are the settings of the operator. Each is a flag, and an environment variable of
// the same name with EnvironmentPrefix.
type Options struct {
	// Kubeconfig is the path of a kubeconfig file; empty for the service account of the
	// Pod.
	Kubeconfig string
	// Namespace is the namespace of the Lease.
	Namespace string
	// WatchNamespace is the namespace whose clusters are managed; empty for all namespaces.
	WatchNamespace string
	// HTTPAddress serves /healthz, /readyz and /metrics.
	HTTPAddress string
	// ClusterDomain is the domain of Services.
	ClusterDomain string
	// MetricsPort is the port of the metrics of nodes.
	MetricsPort int32
	// ScrapeTimeout bounds the scrape of a node. ScrapeParallel is the number of nodes of a
	// cluster that are scraped at a time.
	ScrapeTimeout  time.Duration
	ScrapeParallel int
	// SyncPeriod is the time between two syncs of a cluster that does not change.
	SyncPeriod time.Duration
	// SettleTime is how long the nodes must be unchanged before a removal.
	SettleTime time.Duration
	// RateWindow is the minimum time over which a rate is averaged.
	RateWindow time.Duration

	election.Timing
	// ResyncPeriod is the resync period of informers.
	ResyncPeriod time.Duration
}

// DefaultOptions returns the options without flags and environment variables.
func DefaultOptions() *Options {
	return &Options{
		WatchNamespace: metav1.NamespaceAll,
		HTTPAddress:    ":8081",
		ClusterDomain:  "cluster.local",
		MetricsPort:    children.DefaultMetricsPort,
		ScrapeTimeout:  3 * time.Second,
		ScrapeParallel: 128,
		SyncPeriod:     10 * time.Second,
		SettleTime:     30 * time.Second,
		RateWindow:     10 * time.Second,
		Timing:         election.DefaultTiming(),
		ResyncPeriod:   10 * time.Minute,
	}
}

// AddFlags adds a flag for every option.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig file; empty for the Pod's own account")
	flags.StringVar(&o.Namespace, "namespace", o.Namespace, "namespace of the lease; empty for the Pod's own")
	flags.StringVar(&o.WatchNamespace, "watch-namespace", o.WatchNamespace, "namespace whose clusters are managed; empty for all")
	flags.StringVar(&o.HTTPAddress, "http-address", o.HTTPAddress, "address that serves /healthz, /readyz and /metrics")
	flags.StringVar(&o.ClusterDomain, "cluster-domain", o.ClusterDomain, "domain of Services")
	flags.Int32Var(&o.MetricsPort, "metrics-port", o.MetricsPort, "port of the metrics of nodes")
	flags.DurationVar(&o.ScrapeTimeout, "scrape-timeout", o.ScrapeTimeout, "how long a node may take to report its metrics")
	flags.IntVar(&o.ScrapeParallel, "scrape-parallel", o.ScrapeParallel, "how many nodes of a cluster are scraped at a time")
	flags.DurationVar(&o.SyncPeriod, "sync-period", o.SyncPeriod, "time between two looks at a cluster that does not change")
	flags.DurationVar(&o.SettleTime, "settle-time", o.SettleTime, "how long the nodes must be the same before one is removed")
	flags.DurationVar(&o.RateWindow, "rate-window", o.RateWindow, "least time that a rate of commands is an average of")
	o.Timing.AddFlags(flags)
	flags.DurationVar(&o.ResyncPeriod, "resync-period", o.ResyncPeriod, "after what time every object is looked at again")
}

// FromEnvironment sets each flag that was not given from the environment variable of its
// name: --settle-time from MAREKVS_OPERATOR_SETTLE_TIME.
func FromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	return flagenv.SetFrom(EnvironmentPrefix, flags, lookup)
}

// Complete sets Namespace to the namespace of the Pod unless it is set.
func (o *Options) Complete() error {
	if o.Namespace != "" {
		return nil
	}
	var err error
	o.Namespace, err = election.PodNamespace()
	return err
}

// maxPeriods is how many windows of the rate may pass between two syncs: half of the time for which
// readings are kept, so that a sync may be late.
const maxPeriods = observe.MaxWindows / 2

// Validate returns an error with every wrong option, each with the name of its flag.
func (o *Options) Validate() error {
	var wrong []error
	refuse := func(flag, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("--%s: %w", flag, fmt.Errorf(format, args...)))
	}
	if problems := validation.IsDNS1123Label(o.Namespace); len(problems) > 0 {
		refuse("namespace", "%q: %s", o.Namespace, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Label(o.WatchNamespace); o.WatchNamespace != "" && len(problems) > 0 {
		refuse("watch-namespace", "%q: %s", o.WatchNamespace, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Subdomain(o.ClusterDomain); len(problems) > 0 {
		refuse("cluster-domain", "%q: %s", o.ClusterDomain, strings.Join(problems, "; "))
	}
	if problems := validation.IsValidPortNum(int(o.MetricsPort)); len(problems) > 0 {
		refuse("metrics-port", "%d: %s", o.MetricsPort, strings.Join(problems, "; "))
	}
	if o.ScrapeParallel < 1 {
		refuse("scrape-parallel", "%d must be at least 1", o.ScrapeParallel)
	}
	for flag, value := range map[string]time.Duration{
		"scrape-timeout": o.ScrapeTimeout, "sync-period": o.SyncPeriod, "rate-window": o.RateWindow,
	} {
		if value <= 0 {
			refuse(flag, "%s must be more than 0", value)
		}
	}
	for flag, value := range map[string]time.Duration{"settle-time": o.SettleTime, "resync-period": o.ResyncPeriod} {
		if value < 0 {
			refuse(flag, "%s must not be negative", value)
		}
	}
	// A rate is the average since the newest reading that is older than the window.
	if longest := maxPeriods * o.RateWindow; o.RateWindow > 0 && o.SyncPeriod > longest {
		refuse("sync-period", "%s must be at most %s, %d times --rate-window, because no rate would be known", o.SyncPeriod, longest, maxPeriods)
	}
	o.Timing.Validate(refuse)
	return errors.Join(wrong...)
}
