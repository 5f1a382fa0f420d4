// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// complete are the default options with what they leave out.
func complete() *Options {
	options := DefaultOptions()
	options.Namespace = "marekvs-system"
	return options
}

func TestValidate(t *testing.T) {
	require.NoError(t, complete().Validate())
	for want, change := range map[string]func(*Options){
		`--namespace: "a/b"`:               func(o *Options) { o.Namespace = "a/b" },
		`--watch-namespace: "A"`:           func(o *Options) { o.WatchNamespace = "A" },
		`--cluster-domain: "-"`:            func(o *Options) { o.ClusterDomain = "-" },
		"--metrics-port: 0":                func(o *Options) { o.MetricsPort = 0 },
		"--scrape-parallel: 0":             func(o *Options) { o.ScrapeParallel = 0 },
		"--scrape-timeout: 0s must be":     func(o *Options) { o.ScrapeTimeout = 0 },
		"--sync-period: 0s must be":        func(o *Options) { o.SyncPeriod = 0 },
		"--rate-window: 0s must be":        func(o *Options) { o.RateWindow = 0 },
		"--settle-time: -1ns must not be":  func(o *Options) { o.SettleTime = -1 },
		"--resync-period: -1ns must not":   func(o *Options) { o.ResyncPeriod = -1 },
		"--leader-elect-retry-period: 0s ": func(o *Options) { o.RetryPeriod = 0 },
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

// What the operator reads of a Pod is kept, and what is large is not.
func TestTrim(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-0", UID: "1", ResourceVersion: "2", Labels: map[string]string{"app": "demo"},
			Annotations: map[string]string{"large": "x"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			OwnerReferences: []metav1.OwnerReference{{UID: "set"}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "marekvs"}}},
		Status: corev1.PodStatus{
			PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "marekvs", RestartCount: 3, ImageID: "large",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}},
		},
	}
	trimmed, err := trim(pod)
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-0", UID: "1", ResourceVersion: "2", Labels: map[string]string{"app": "demo"},
			OwnerReferences: []metav1.OwnerReference{{UID: "set"}},
		},
		Status: corev1.PodStatus{
			PodIP:      "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "marekvs", RestartCount: 3,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}},
		},
	}, trimmed)
}

func TestEachWarningIsLoggedOnce(t *testing.T) {
	w := &warnings{}
	assert.True(t, w.first(299, "deprecated"))
	assert.False(t, w.first(299, "deprecated"))
	assert.True(t, w.first(299, "other"))
	assert.False(t, w.first(199, "no warning of the API server"))
}
