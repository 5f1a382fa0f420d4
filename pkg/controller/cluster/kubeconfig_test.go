// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"testing"
	"time"

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
	h.showCluster(false)
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

func TestTokenIsReplacedInTime(t *testing.T) {
	for _, life := range []time.Duration{time.Hour, 20 * time.Minute} {
		h, requeue := settled(t, life)
		if requeue <= 0 || requeue > life*8/10 {
			t.Errorf("a token of %s is looked at again after %s, past 80 %%", life, requeue)
		}
		h.clock.SetTime(h.clock.Now().Add(requeue - time.Second))
		if again := h.expect(); again != time.Second {
			t.Errorf("a second before, the next look is in %s", again)
		}
		h.clock.SetTime(h.clock.Now().Add(time.Second))
		h.expect(requestToken, writeSecret)
		config, err := clientcmd.RESTConfigFromKubeConfig(h.secret().Data["value"])
		if err != nil || config.BearerToken != "token-2" {
			t.Errorf("the token is %q, error %v", config.BearerToken, err)
		}
		h.expect()
	}
}

func TestTokenOfANewLeaderIsGoodForTenMinutes(t *testing.T) {
	h, _ := settled(t, time.Hour)
	h.clock.SetTime(h.clock.Now().Add(46 * time.Minute))
	h.restart(source())
	h.expect(requestToken, writeSecret)
}

// A token that lives shorter than what is left at a refresh must not be asked
// for all the time.
func TestTokenThatIsShortFromTheStart(t *testing.T) {
	_, requeue := settled(t, 10*time.Minute)
	if requeue < time.Minute || requeue > 8*time.Minute {
		t.Errorf("looked at again after %s", requeue)
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
	update := func(change func(data map[string][]byte, annotations map[string]string)) func(*harness) {
		return func(h *harness) {
			secret := h.secret()
			change(secret.Data, secret.Annotations)
			if _, err := h.kube.CoreV1().Secrets(namespace).Update(context.Background(), secret, metav1.UpdateOptions{}); err != nil {
				h.t.Fatal(err)
			}
			h.did = nil
		}
	}
	for name, change := range map[string]func(*harness){
		"another server":  other(func(s *KubeconfigSource) { s.Server = "https://192.0.2.1:6443" }),
		"another CA":      other(func(s *KubeconfigSource) { s.CAData = []byte("rotated") }),
		"another account": other(func(s *KubeconfigSource) { s.ServiceAccount = "another" }),
		"it was deleted": func(h *harness) {
			if err := h.kube.CoreV1().Secrets(namespace).Delete(context.Background(), h.secret().Name, metav1.DeleteOptions{}); err != nil {
				h.t.Fatal(err)
			}
			h.did = nil
		},
		"it is empty":            update(func(data map[string][]byte, _ map[string]string) { delete(data, "value") }),
		"it is no kubeconfig":    update(func(data map[string][]byte, _ map[string]string) { data["value"] = []byte("[") }),
		"its expiry is not told": update(func(_ map[string][]byte, annotations map[string]string) { clear(annotations) }),
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := settled(t, time.Hour)
			change(h)
			did, _, err := h.sync()
			if err != nil || len(did) != 2 || did[1] != writeSecret {
				t.Errorf("wrote %q, error %v", did, err)
			}
			h.expect()
		})
	}
}
