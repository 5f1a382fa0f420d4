// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// administratorSecret returns a usable Secret of an administrator.
func administratorSecret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: SecretName(name), Namespace: namespace, Labels: map[string]string{clusterv1.ClusterNameLabel: name},
		},
		Data: map[string][]byte{"value": []byte("kubeconfig")},
	}
}

func TestProblemsOfTheAdministratorsSecretAreReported(t *testing.T) {
	const missing, label, key = "is missing", "lacks the label", "lacks the key"
	for title, test := range map[string]struct {
		secret *corev1.Secret
		change func(*corev1.Secret)
		want   string
	}{
		"usable":               {administratorSecret(), func(*corev1.Secret) {}, ""},
		"none":                 {nil, nil, missing},
		"without the label":    {administratorSecret(), func(s *corev1.Secret) { s.Labels = nil }, label},
		"labelled for another": {administratorSecret(), func(s *corev1.Secret) { s.Labels[clusterv1.ClusterNameLabel] = "another" }, label},
		"without the key":      {administratorSecret(), func(s *corev1.Secret) { s.Data = map[string][]byte{"kubeconfig": {1}} }, key},
		"with an empty key":    {administratorSecret(), func(s *corev1.Secret) { s.Data["value"] = nil }, key},
	} {
		t.Run(title, func(t *testing.T) {
			h := newHarness(t, nil)
			if test.secret != nil {
				test.change(test.secret)
				require.NoError(t, h.KubeClient.Tracker().Add(test.secret))
			}
			if requeue := h.expect(writeCluster, writeStatus, createCluster); requeue != 0 {
				t.Errorf("requeued after %s", requeue)
			}
			available := h.condition(v1beta1.ConditionKubeconfigAvailable)
			if test.want == "" {
				if available.Status != metav1.ConditionTrue {
					t.Errorf("the condition is %+v", available)
				}
				return
			}
			if available.Status != metav1.ConditionFalse || available.Reason != "KubeconfigMissing" {
				t.Errorf("the condition is %+v", available)
			}
			for _, part := range []string{namespace + "/" + name + "-kubeconfig", test.want, `"value"`, "cluster.x-k8s.io/cluster-name=" + name} {
				if !strings.Contains(available.Message, part) {
					t.Errorf("the message %q lacks %q", available.Message, part)
				}
			}
			if ready := h.condition(v1beta1.ConditionReady); ready.Status != metav1.ConditionTrue {
				t.Errorf("Ready is %+v", ready)
			}
		})
	}
}

func TestChangesOfTheAdministratorsSecretAreReported(t *testing.T) {
	h := newHarness(t, nil)
	h.expect(writeCluster, writeStatus, createCluster)
	h.showCluster()
	h.expect()
	require.NoError(t, h.KubeClient.Tracker().Add(administratorSecret()))
	h.expect(writeStatus)
	if available := h.condition(v1beta1.ConditionKubeconfigAvailable); available.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", available)
	}
	h.changeSecret(func(secret *corev1.Secret) { secret.Labels = nil })
	h.expect(writeStatus)
	if available := h.condition(v1beta1.ConditionKubeconfigAvailable); available.Status != metav1.ConditionFalse {
		t.Errorf("the condition is %+v", available)
	}
}
