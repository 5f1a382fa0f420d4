// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// complete returns the default options with the required options.
func complete() *Options {
	options := DefaultOptions()
	options.Namespace = "marekvs-system"
	return options
}

func TestValidate(t *testing.T) {
	require.NoError(t, complete().Validate())
	for want, change := range map[string]func(*Options){
		`--namespace: "a/b"`:           func(o *Options) { o.Namespace = "a/b" },
		`--watch-namespace: "A"`:       func(o *Options) { o.WatchNamespace = "A" },
		`--cluster-domain: "-"`:        func(o *Options) { o.ClusterDomain = "-" },
		"--metrics-port: 0":            func(o *Options) { o.MetricsPort = 0 },
		"--scrape-parallel: 0":         func(o *Options) { o.ScrapeParallel = 0 },
		"--scrape-timeout: 0s must be": func(o *Options) { o.ScrapeTimeout = 0 },
		"--sync-period: 0s must be":    func(o *Options) { o.SyncPeriod = 0 },
		"--rate-window: 0s must be":    func(o *Options) { o.RateWindow = 0 },
		"--sync-period: 1m1s must be at most 1m0s, 6 times --rate-window": func(o *Options) { o.SyncPeriod = time.Minute + time.Second },
		"--settle-time: -1ns must not be":                                 func(o *Options) { o.SettleTime = -1 },
		"--resync-period: -1ns must not":                                  func(o *Options) { o.ResyncPeriod = -1 },
		"--leader-elect-retry-period: 0s ":                                func(o *Options) { o.RetryPeriod = 0 },
	} {
		options := complete()
		change(options)
		require.ErrorContains(t, options.Validate(), want)
	}
}

func TestEveryFlagHasAnEnvironmentVariable(t *testing.T) {
	options := DefaultOptions()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.AddFlags(flags)
	require.NoError(t, flags.Parse([]string{"--sync-period=7s"}))
	require.NoError(t, FromEnvironment(flags, func(name string) (string, bool) {
		value, ok := map[string]string{"MAREKVS_OPERATOR_SETTLE_TIME": "42s", "MAREKVS_OPERATOR_SYNC_PERIOD": "1s"}[name]
		return value, ok
	}))
	assert.Equal(t, 42*time.Second, options.SettleTime)
	assert.Equal(t, 7*time.Second, options.SyncPeriod, "the flag wins")
}
