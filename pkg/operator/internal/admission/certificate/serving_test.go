// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

// replica is the webhook of an operator, as leader or standby.
type replica struct {
	Serving
	controller *Controller
}

func newReplica(ctx context.Context, t *testing.T, client kubernetes.Interface) *replica {
	t.Helper()
	factory := informers.NewSharedInformerFactory(client, 0)
	secrets := factory.Core().V1().Secrets().Informer()
	r := &replica{}
	served, err := r.Watch(ctx, secrets)
	require.NoError(t, err)
	controller, err := New(config, client, secrets,
		factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(), clock.RealClock{})
	require.NoError(t, err)
	r.controller = controller
	factory.StartWithContext(ctx)
	cache.WaitFor(ctx, "caches", append(controller.HasSynced(), served.HasSyncedChecker())...)
	return r
}

// serves compares the certificate of a replica with the Secret.
func (r *replica) serves(t *testing.T, h *harness) {
	t.Helper()
	got, err := r.GetCertificate(nil)
	require.NoError(t, err)
	if !got.Leaf.Equal(h.pair().Leaf) {
		t.Error("serves another certificate than the Secret has")
	}
	assert.NoError(t, handshake(time.Now(), h.configuration().Webhooks[0].ClientConfig.CABundle, got, host), "the webhook cannot be called")
}

// TestEveryReplicaServesTheLeadersCertificate: the leader issues the certificate and renews
// it; a standby serves the same certificate.
func TestEveryReplicaServesTheLeadersCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
		h := &harness{Clientset: kubefake.NewClientset(installed()), t: t}
		leader, standby := newReplica(ctx, t, h), newReplica(ctx, t, h)
		if _, err := standby.GetCertificate(nil); !errors.Is(err, errMissing) {
			t.Errorf("without a certificate: error %v", err)
		}
		done := make(chan struct{})
		go func() {
			leader.controller.Run(ctx)
			close(done)
		}()
		synctest.Wait()
		leader.serves(t, h)
		standby.serves(t, h)

		first := h.pair()
		<-time.After(servingLifetime / 2)
		if !h.pair().Leaf.Equal(first.Leaf) {
			t.Error("renewed too soon")
		}
		<-time.After(servingLifetime / 4)
		if h.pair().Leaf.Equal(first.Leaf) {
			t.Error("not renewed in time")
		}
		standby.serves(t, h)

		second := h.pair()
		require.NoError(t, h.CoreV1().Secrets(namespace).Delete(ctx, config.Secret, metav1.DeleteOptions{}))
		synctest.Wait()
		if h.pair().Leaf.Equal(second.Leaf) {
			t.Error("a deleted Secret has come back")
		}
		standby.serves(t, h)

		h.editConfiguration(func(webhooks []admissionregistrationv1.ValidatingWebhook) { webhooks[0].ClientConfig.CABundle = nil })
		synctest.Wait()
		standby.serves(t, h)
		stop()
		<-done
		standby.controller.Run(ctx) // shuts down its queue
	})
}

// TestServingKeepsTheLastCertificate: without a leader the Secret is not repaired,
// and the replicas keep serving.
func TestServingKeepsTheLastCertificate(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	want := h.pair().Leaf
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
		standby := newReplica(ctx, t, h)
		expect := func(when string) {
			t.Helper()
			synctest.Wait()
			if got, err := standby.GetCertificate(nil); err != nil || !got.Leaf.Equal(want) {
				t.Errorf("%s: error %v, or another certificate", when, err)
			}
		}
		expect("at first")
		h.edit(func(data map[string][]byte) { data["tls.crt"] = []byte("damaged") })
		expect("damaged")
		require.NoError(t, h.CoreV1().Secrets(namespace).Delete(ctx, config.Secret, metav1.DeleteOptions{}))
		expect("deleted")
		stop()
		standby.controller.Run(ctx) // shuts down its queue
	})
}
