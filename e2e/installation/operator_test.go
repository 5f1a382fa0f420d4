// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func field(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

// deployment returns a Deployment whose container change has changed.
func deployment(change func(*corev1.Container)) *appsv1.Deployment {
	c := corev1.Container{Name: containerName, ReadinessProbe: &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz"}},
	}}
	change(&c)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "system"}}
	d.Spec.Template.Spec = corev1.PodSpec{
		ServiceAccountName: "account",
		Containers:         []corev1.Container{{Name: "proxy"}, c},
	}
	return d
}

func TestContainerIsReadAsByAKubelet(t *testing.T) {
	got, err := newContainer(deployment(func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{
			{Name: "NAMESPACE", ValueFrom: field("metadata.namespace")},
			{Name: "POD", ValueFrom: field("metadata.name")},
			{Name: "ACCOUNT", ValueFrom: field("spec.serviceAccountName")},
			{Name: "BOTH", Value: "$(NAMESPACE)/$(POD) $(LATER)"},
			{Name: "LATER", Value: "x"},
		}
		c.Args = []string{"--id=$(BOTH)", "--other=$(UNKNOWN)"}
	}), "pod-1")
	require.NoError(t, err)
	assert.Equal(t, &container{
		serviceAccount: "account",
		readinessPath:  "/readyz",
		env:            []string{"NAMESPACE=system", "POD=pod-1", "ACCOUNT=account", "BOTH=system/pod-1 $(LATER)", "LATER=x"},
		args:           []string{"--id=system/pod-1 $(LATER)", "--other=$(UNKNOWN)"},
	}, got)
}

// Fields that a kubelet supports and this package does not are errors.
func TestUnsupportedContainerIsRejected(t *testing.T) {
	for want, change := range map[string]func(*corev1.Container){
		"not found":                  func(c *corev1.Container) { c.Name = "other" },
		"no readiness probe by HTTP": func(c *corev1.Container) { c.ReadinessProbe = nil },
		"command and envFrom are not supported": func(c *corev1.Container) {
			c.Command = []string{"/other"}
		},
		"variable X: field status.podIP is not supported": func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "X", ValueFrom: field("status.podIP")}}
		},
		"variable X: only fields of the Pod are supported": func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{}}}
		},
	} {
		_, err := newContainer(deployment(change), "pod-1")
		assert.EqualError(t, err, want)
	}
}
