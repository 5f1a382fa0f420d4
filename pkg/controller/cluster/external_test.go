// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// administrators is the Secret as an administrator has to make it.
func administrators() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: SecretName(name), Namespace: namespace, Labels: map[string]string{clusterv1.ClusterNameLabel: name},
		},
		Data: map[string][]byte{"value": []byte("theirs")},
	}
}

func TestExternalModeSaysWhatIsWrongWithTheSecretAndLeavesItAlone(t *testing.T) {
	const missing, label, key = "is missing", "lacks the label", "lacks the key"
	for name, test := range map[string]struct {
		secret *corev1.Secret
		change func(*corev1.Secret)
		want   string
	}{
		"as it should be":             {administrators(), func(*corev1.Secret) {}, ""},
		"none":                        {nil, nil, missing},
		"without the label":           {administrators(), func(s *corev1.Secret) { s.Labels = nil }, label},
		"labelled for another":        {administrators(), func(s *corev1.Secret) { s.Labels[clusterv1.ClusterNameLabel] = "another" }, label},
		"without the key":             {administrators(), func(s *corev1.Secret) { s.Data = map[string][]byte{"kubeconfig": {1}} }, key},
		"with nothing behind the key": {administrators(), func(s *corev1.Secret) { s.Data["value"] = nil }, key},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			if test.secret != nil {
				test.change(test.secret)
				if err := h.kube.Tracker().Add(test.secret); err != nil {
					t.Fatal(err)
				}
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
			for _, part := range []string{"default/prod--default-kubeconfig", test.want, `"value"`, "cluster.x-k8s.io/cluster-name=prod--default"} {
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

func TestExternalModeSeesTheSecretComeAndGo(t *testing.T) {
	h := newHarness(t, nil)
	h.expect(writeCluster, writeStatus, createCluster)
	h.showCluster()
	h.expect()
	if err := h.kube.Tracker().Add(administrators()); err != nil {
		t.Fatal(err)
	}
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
