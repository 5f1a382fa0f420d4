// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"bytes"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// settled is a cluster that has everything, with a token of this life.
func settled(t *testing.T, life time.Duration) (h *harness, requeue time.Duration) {
	t.Helper()
	h = newHarness(t, source())
	h.life = life
	requeue = h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	return h, requeue
}

func TestSecretIsWhatClusterAPIReads(t *testing.T) {
	h, _ := settled(t, time.Hour)
	secret := h.secret()
	if secret.Type != clusterv1.ClusterSecretType {
		t.Errorf("the type is %q", secret.Type)
	}
	if got := secret.Labels[clusterv1.ClusterNameLabel]; got != name {
		t.Errorf("the label says %q", got)
	}
	if got := secret.Annotations[v1beta1.AnnotationTokenExpiry]; got != "2030-01-01T01:00:00Z" {
		t.Errorf("the annotation says %q", got)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://kubernetes.default.svc:443" || config.BearerToken != "token-1" || string(config.CAData) != "CA" {
		t.Errorf("the kubeconfig leads to %s with token %q and CA %q", config.Host, config.BearerToken, config.CAData)
	}
}

// The life that counts is the one that was granted.
func TestTokenIsReplacedInTime(t *testing.T) {
	for _, life := range []time.Duration{2 * time.Hour, time.Hour, 20 * time.Minute, 10 * time.Minute} {
		h, requeue := settled(t, life)
		if requeue < life/2 || requeue > life*8/10 {
			t.Errorf("a token of %s is looked at again after %s, past 80 %%", life, requeue)
		}
		h.clock.SetTime(h.clock.Now().Add(requeue - time.Second))
		if again := h.expect(); again != time.Second {
			t.Errorf("a second before, the next look is in %s", again)
		}
		h.clock.SetTime(h.clock.Now().Add(time.Second))
		h.expect(requestToken, writeSecret)
		if got := h.bearer(); got != "token-2" {
			t.Errorf("the token is %q", got)
		}
		h.expect()
	}
}

// A token that is over as soon as it is granted, for the clocks differ, must not
// be asked for all the time.
func TestTokenThatIsOverAtOnceIsReplacedNowAndThen(t *testing.T) {
	h, requeue := settled(t, -time.Hour)
	if requeue != time.Minute {
		t.Errorf("looked at again after %s", requeue)
	}
	if requeue = h.expect(); requeue != time.Minute {
		t.Errorf("looked at again after %s", requeue)
	}
}

// A new leader does not know the life of the token that it finds.
func TestTokenThatAnEarlierLeaderLeft(t *testing.T) {
	for after, want := range map[time.Duration][]string{
		0:                nil,
		44 * time.Minute: nil,
		46 * time.Minute: {requestToken, writeSecret},
		51 * time.Minute: {requestToken, writeSecret},
		2 * time.Hour:    {requestToken, writeSecret},
	} {
		h, _ := settled(t, time.Hour)
		h.clock.SetTime(h.clock.Now().Add(after))
		h.restart(source())
		requeue := h.expect(want...)
		if left := 45*time.Minute - after; want == nil && requeue != left {
			t.Errorf("a token that is %s old is looked at again after %s, want %s", after, requeue, left)
		}
	}
}

func TestSecretIsMadeAnew(t *testing.T) {
	other := func(change func(*KubeconfigSource)) func(*harness) {
		return func(h *harness) {
			source := source()
			change(source)
			h.restart(source)
		}
	}
	changed := func(change func(*corev1.Secret)) func(*harness) {
		return func(h *harness) { h.changeSecret(change) }
	}
	// after runs what happens to the Secret while another operator takes over.
	after := func(change func(*harness)) func(*harness) {
		return func(h *harness) {
			change(h)
			h.restart(source())
		}
	}
	unlabelled := changed(func(s *corev1.Secret) { delete(s.Labels, clusterv1.ClusterNameLabel) })
	for name, change := range map[string]func(*harness){
		"another server":  other(func(s *KubeconfigSource) { s.Server = "https://192.0.2.1:6443" }),
		"another CA":      other(func(s *KubeconfigSource) { s.CAData = []byte("rotated") }),
		"another account": other(func(s *KubeconfigSource) { s.ServiceAccount = "another" }),
		"it was deleted": func(h *harness) {
			if err := h.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), namespace, SecretName(name)); err != nil {
				h.t.Fatal(err)
			}
			h.secretVersion++
		},
		"it is empty":         changed(func(s *corev1.Secret) { delete(s.Data, "value") }),
		"it is no kubeconfig": changed(func(s *corev1.Secret) { s.Data["value"] = []byte("[") }),
		"it is another kubeconfig": changed(func(s *corev1.Secret) {
			s.Data["value"] = bytes.Replace(s.Data["value"], []byte("token-1"), []byte("x"), 1)
		}),
		"its expiry is not told":      changed(func(s *corev1.Secret) { clear(s.Annotations) }),
		"its expiry is another":       changed(func(s *corev1.Secret) { s.Annotations[v1beta1.AnnotationTokenExpiry] = "2031-01-01T00:00:00Z" }),
		"its expiry is no time":       changed(func(s *corev1.Secret) { s.Annotations[v1beta1.AnnotationTokenExpiry] = "soon" }),
		"its label is gone":           unlabelled,
		"its label is another's":      changed(func(s *corev1.Secret) { s.Labels[clusterv1.ClusterNameLabel] = "another" }),
		"its label is gone meanwhile": after(unlabelled),
		"its expiry is no time, and a new leader comes": after(changed(func(s *corev1.Secret) {
			s.Annotations[v1beta1.AnnotationTokenExpiry] = "soon"
		})),
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := settled(t, time.Hour)
			change(h)
			did, _, err := h.sync()
			if err != nil || len(did) != 2 || did[1] != writeSecret {
				t.Errorf("wrote %q, error %v", did, err)
			}
			if got := h.bearer(); got != "token-2" {
				t.Errorf("the token is %q", got)
			}
			if got := h.secret(); got.Labels[clusterv1.ClusterNameLabel] != "prod--default" || got.Annotations[v1beta1.AnnotationTokenExpiry] != "2030-01-01T01:00:00Z" {
				t.Errorf("it has labels %v and annotations %v", got.Labels, got.Annotations)
			}
			h.expect()
		})
	}
}

// The type of a Secret cannot be changed, and Cluster API does not look at it.
// What others add is theirs.
func TestSecretOfAnotherTypeIsKept(t *testing.T) {
	h := newHarness(t, source())
	theirs := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName(name), Namespace: namespace, Labels: map[string]string{"theirs": "yes"}},
		Type:       corev1.SecretTypeOpaque,
	}
	if err := h.kube.Tracker().Add(theirs); err != nil {
		t.Fatal(err)
	}
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	secret := h.secret()
	if secret.Type != corev1.SecretTypeOpaque || secret.Labels["theirs"] != "yes" || h.bearer() != "token-1" {
		t.Errorf("the Secret is of type %s, with labels %v", secret.Type, secret.Labels)
	}
	h.changeSecret(func(s *corev1.Secret) { s.Annotations["theirs"] = "yes" })
	h.expect()
}
