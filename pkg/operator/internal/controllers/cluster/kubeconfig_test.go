// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// newSyncedHarness returns a harness after the first sync, which has granted a token of
// this lifetime.
func newSyncedHarness(t *testing.T, lifetime time.Duration) (h *harness, requeue time.Duration) {
	t.Helper()
	h = newHarness(t, source())
	h.tokenLifetime = lifetime
	requeue = h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	return h, requeue
}

func TestSecretIsWhatClusterAPIReads(t *testing.T) {
	h, _ := newSyncedHarness(t, time.Hour)
	secret := h.secret()
	if secret.Type != clusterv1.ClusterSecretType {
		t.Errorf("the type is %q", secret.Type)
	}
	if got := secret.Labels[clusterv1.ClusterNameLabel]; got != name {
		t.Errorf("the label is %q", got)
	}
	if got := secret.Annotations[v1beta1.AnnotationTokenExpiry]; got != "2026-01-01T01:00:00Z" {
		t.Errorf("the annotation is %q", got)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	require.NoError(t, err)
	if config.Host != "https://kubernetes.default.svc:443" || config.BearerToken != "token-1" || string(config.CAData) != "CA" {
		t.Errorf("the kubeconfig has server %s, token %q and CA %q", config.Host, config.BearerToken, config.CAData)
	}
}

// The granted lifetime determines the refresh, not the requested lifetime.
func TestTokenIsReplacedInTime(t *testing.T) {
	for _, lifetime := range []time.Duration{2 * time.Hour, time.Hour, 20 * time.Minute, 10 * time.Minute} {
		h, requeue := newSyncedHarness(t, lifetime)
		var age time.Duration
		// The reviews before it change nothing.
		for h.tokens == 1 {
			require.Positive(t, requeue)
			age += requeue
			h.Advance(requeue)
			var writes []string
			var err error
			writes, requeue, err = h.sync()
			require.NoError(t, err)
			if h.tokens == 1 {
				require.Empty(t, writes)
			}
		}
		if age < lifetime/2 || age > lifetime*8/10 {
			t.Errorf("a token of %s is replaced after %s, want between 50 and 80 %%", lifetime, age)
		}
		if got := h.bearerToken(); got != "token-2" {
			t.Errorf("the token is %q", got)
		}
		h.expect()
	}
}

// A token that appears to be expired when it is granted, because clocks differ, must not be
// requested again at once.
func TestExpiredTokenIsReplacedEveryMinute(t *testing.T) {
	h, requeue := newSyncedHarness(t, -time.Hour)
	if requeue != time.Minute {
		t.Errorf("requeued after %s", requeue)
	}
	if requeue = h.expect(); requeue != time.Minute {
		t.Errorf("requeued after %s", requeue)
	}
}

// A new leader does not know the lifetime of an existing token.
func TestTokenOfAPreviousLeaderIsReplacedInTime(t *testing.T) {
	for after, want := range map[time.Duration][]string{
		0:                nil,
		44 * time.Minute: nil,
		46 * time.Minute: {requestToken, writeSecret},
		51 * time.Minute: {requestToken, writeSecret},
		2 * time.Hour:    {requestToken, writeSecret},
	} {
		h, _ := newSyncedHarness(t, time.Hour)
		h.Advance(after)
		h.restart(source())
		requeue := h.expect(want...)
		if due := min(45*time.Minute-after, reviewPeriod); want == nil && requeue != due {
			t.Errorf("a token that is %s old is due after %s, want %s", after, requeue, due)
		}
	}
}

// A token of a ServiceAccount that was deleted and created again has not expired, and is not accepted. A
// review that fails replaces nothing.
func TestTokenThatIsNotAcceptedIsReplaced(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		h, _ := newSyncedHarness(t, time.Hour)
		h.refused = []string{"token-1"}
		h.Advance(reviewPeriod - time.Second)
		h.expect()
		require.Zero(t, h.reviews, "reviews before they are due")
		h.Advance(time.Second)
		if restarted {
			h.restart(source())
		}
		h.reviewError = apierrors.NewServiceUnavailable("down")
		require.Equal(t, reviewPeriod, h.expect())
		h.reviewError = nil
		h.Advance(reviewPeriod)
		require.Equal(t, reviewPeriod, h.expect(requestToken, writeSecret))
		require.Equal(t, "token-2", h.bearerToken())
		h.expect()
		require.Equal(t, 1, h.reviews)
	}
}

// A new leader reviews the token that it finds.
func TestTokenOfAPreviousLeaderIsReviewed(t *testing.T) {
	h, _ := newSyncedHarness(t, time.Hour)
	h.refused = []string{"token-1"}
	h.restart(source())
	h.expect(requestToken, writeSecret)
	h.restart(source())
	h.expect()
	require.Equal(t, 2, h.reviews)
}

func TestSecretIsWrittenAgain(t *testing.T) {
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
	// after returns a change that is followed by a new controller.
	after := func(change func(*harness)) func(*harness) {
		return func(h *harness) {
			change(h)
			h.restart(source())
		}
	}
	unlabelled := changed(func(s *corev1.Secret) { delete(s.Labels, clusterv1.ClusterNameLabel) })
	for title, change := range map[string]func(*harness){
		"different server":         other(func(s *KubeconfigSource) { s.Server = "https://192.0.2.1:6443" }),
		"different CA":             other(func(s *KubeconfigSource) { s.CAData = []byte("rotated") }),
		"different ServiceAccount": other(func(s *KubeconfigSource) { s.ServiceAccount = "another" }),
		"deleted": func(h *harness) {
			require.NoError(h.T, h.KubeClient.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("secrets"), namespace, SecretName(name)))
			h.secretVersion++
		},
		"empty":            changed(func(s *corev1.Secret) { delete(s.Data, "value") }),
		"not a kubeconfig": changed(func(s *corev1.Secret) { s.Data["value"] = []byte("[") }),
		"different kubeconfig": changed(func(s *corev1.Secret) {
			s.Data["value"] = bytes.Replace(s.Data["value"], []byte("token-1"), []byte("x"), 1)
		}),
		"no expiry":             changed(func(s *corev1.Secret) { clear(s.Annotations) }),
		"different expiry":      changed(func(s *corev1.Secret) { s.Annotations[v1beta1.AnnotationTokenExpiry] = "2027-01-01T00:00:00Z" }),
		"invalid expiry":        changed(func(s *corev1.Secret) { s.Annotations[v1beta1.AnnotationTokenExpiry] = "soon" }),
		"no label":              unlabelled,
		"different label":       changed(func(s *corev1.Secret) { s.Labels[clusterv1.ClusterNameLabel] = "another" }),
		"no label at a restart": after(unlabelled),
		"invalid expiry at a restart": after(changed(func(s *corev1.Secret) {
			s.Annotations[v1beta1.AnnotationTokenExpiry] = "soon"
		})),
	} {
		t.Run(title, func(t *testing.T) {
			h, _ := newSyncedHarness(t, time.Hour)
			change(h)
			writes, _, err := h.sync()
			if err != nil || len(writes) != 2 || writes[1] != writeSecret {
				t.Errorf("wrote %q, error %v", writes, err)
			}
			if got := h.bearerToken(); got != "token-2" {
				t.Errorf("the token is %q", got)
			}
			if got := h.secret(); got.Labels[clusterv1.ClusterNameLabel] != name || got.Annotations[v1beta1.AnnotationTokenExpiry] != "2026-01-01T01:00:00Z" {
				t.Errorf("it has labels %v and annotations %v", got.Labels, got.Annotations)
			}
			h.expect()
		})
	}
}

// The type of a Secret is immutable, and Cluster API ignores it. Labels and annotations of
// other clients stay.
func TestSecretOfAnotherTypeIsKept(t *testing.T) {
	h := newHarness(t, source())
	existing := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName(name), Namespace: namespace, Labels: map[string]string{"team": "shop"}},
		Type:       corev1.SecretTypeOpaque,
	}
	require.NoError(t, h.KubeClient.Tracker().Add(existing))
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	h.showCluster()
	secret := h.secret()
	if secret.Type != corev1.SecretTypeOpaque || secret.Labels["team"] != "shop" || h.bearerToken() != "token-1" {
		t.Errorf("the Secret is of type %s, with labels %v", secret.Type, secret.Labels)
	}
	h.changeSecret(func(s *corev1.Secret) { s.Annotations["team"] = "shop" })
	h.expect()
}

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
