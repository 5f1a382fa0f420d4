// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The objects by which the API server finds the webhook and trusts it.
const (
	webhookConfiguration = "nstance-operator"
	webhookSecret        = "nstance-webhook-cert"
)

// createDry has the API server judge a new pool, and does not make it.
func createDry(ctx context.Context, pool *v1beta1.NstanceMachinePool) error {
	_, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
		Create(ctx, pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// invalid succeeds when err says that all these are wrong.
func invalid(err error, parts ...string) error {
	if !apierrors.IsInvalid(err) {
		return fmt.Errorf("got error %w, want it invalid", cmp.Or(err, errors.New("none")))
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%w: does not say %q", err, part)
		}
	}
	return nil
}

// webhookWorks succeeds when the API server has the webhook judge requests.
func webhookWorks(ctx context.Context) error {
	return invalid(createDry(ctx, newPool("nowhere", "us-west-9z")),
		"nstancemachinepools.nstance.dev", `spec.shards[0]: Invalid value: "us-west-9z"`, "us-west-2a, us-west-2b, us-west-2c")
}

func TestWebhookRefusesGroupsAndShards(t *testing.T) {
	const name = "judged"
	createPool(t, name, 1)
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 1) })
	eventually(t, time.Minute, "a shard that is not configured is refused", webhookWorks)
	eventually(t, time.Minute, "a group that is in use is refused", func(ctx context.Context) error {
		double := newPool("double", shardIDs...)
		double.Spec.Group = name
		return invalid(createDry(ctx, double), `spec.group: Invalid value: "judged"`, "belongs to pool judged")
	})
	eventually(t, time.Minute, "a shard that is added and not configured is refused", func(ctx context.Context) error {
		_, err := patchPool(ctx, name, `{"spec":{"shards":["us-west-2a","us-west-9z"]}}`)
		return invalid(err, `spec.shards[1]: Invalid value: "us-west-9z"`)
	})
	// It does not judge what is done elsewhere.
	elsewhere := newPool("elsewhere", "us-west-9z")
	elsewhere.Namespace = metav1.NamespaceDefault
	_, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(metav1.NamespaceDefault).
		Create(t.Context(), elsewhere, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Error(err)
	}
}

// An operator that is dead keeps nobody from deleting a pool, nor from creating
// one that it would refuse.
func TestDeadWebhookBlocksNothing(t *testing.T) {
	const name = "unguarded"
	runPool(t, name, 1, shardIDs...)
	eventually(t, time.Minute, "the webhook works", webhookWorks)
	operator := env.cp.Component(env.operator.Component)
	if err := operator.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, running := operator.PID(); !running {
			mustStart(t, operator)
		}
	})
	if err := createDry(t.Context(), newPool("nowhere", "us-west-9z")); err != nil {
		t.Errorf("creating is blocked: %v", err)
	}
	if err := env.capi.MachinePools(nstance.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting is blocked: %v", err)
	}
	eventually(t, time.Minute, "Cluster API deletes the pool", func(ctx context.Context) error {
		pool, err := getPool(ctx, name)
		if err == nil && pool.DeletionTimestamp == nil {
			err = errors.New("it is not being deleted")
		}
		return err
	})
	mustStart(t, operator)
	untilNothingIsLeft(t, name)
}

// A standby judges like the leader, with the same certificate.
func TestStandbyServesTheWebhook(t *testing.T) {
	standby, err := env.n.StartOperator(t.Context(), nstance.Operator{Component: "operator-webhook-standby"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.cp.Component(standby.Component).Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if leads(t, standby) {
		t.Fatal("the operator that started second leads")
	}
	eventually(t, time.Minute, "the standby answers", func(ctx context.Context) error {
		response, err := askWebhook(ctx, standby, newPool("nowhere", "us-west-9z"))
		if err != nil {
			return err
		}
		if response.Allowed || response.Result == nil || !strings.Contains(response.Result.Message, "us-west-9z") {
			return fmt.Errorf("answered %+v", response)
		}
		response, err = askWebhook(ctx, standby, newPool("somewhere", "us-west-2a"))
		if err == nil && !response.Allowed {
			err = fmt.Errorf("answered %+v", response.Result)
		}
		return err
	})
}

// askWebhook does what the API server does when a pool is created.
func askWebhook(ctx context.Context, operator nstance.Operator, pool *v1beta1.NstanceMachinePool) (*admissionv1.AdmissionResponse, error) {
	secret, err := env.kube.CoreV1().Secrets(nstance.Namespace).Get(ctx, webhookSecret, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	object, err := json.Marshal(pool)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "asked", Operation: admissionv1.Create, Namespace: nstance.Namespace, Name: pool.Name,
			Resource: metav1.GroupVersionResource(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools")),
			Object:   runtime.RawExtension{Raw: object},
		},
	})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, operator.WebhookURL()+"/validate", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(answer.Body).Decode(&review); err != nil {
		return nil, err
	}
	if review.Response == nil || review.Response.UID != "asked" {
		return nil, fmt.Errorf("%s: answered %+v", answer.Status, review)
	}
	return review.Response, nil
}

// Whatever happens to the certificate or to whom the API server trusts, it is put
// right.
func TestWebhookCertificateIsPutRight(t *testing.T) {
	eventually(t, time.Minute, "the webhook works", webhookWorks)
	secrets := env.kube.CoreV1().Secrets(nstance.Namespace)
	for _, c := range []struct {
		name   string
		damage func(context.Context) error
	}{
		{"the Secret is deleted", func(ctx context.Context) error {
			return secrets.Delete(ctx, webhookSecret, metav1.DeleteOptions{})
		}},
		{"the certificate is damaged", func(ctx context.Context) error {
			secret, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
			if err != nil {
				return err
			}
			secret.Data["tls.crt"] = []byte("damaged")
			_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
			return err
		}},
		{"the API server trusts nobody", func(ctx context.Context) error {
			configurations := env.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
			configuration, err := configurations.Get(ctx, webhookConfiguration, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for i := range configuration.Webhooks {
				configuration.Webhooks[i].ClientConfig.CABundle = nil
			}
			_, err = configurations.Update(ctx, configuration, metav1.UpdateOptions{})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.damage(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "all is in order", func(ctx context.Context) error {
				secret, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
				if err != nil {
					return err
				}
				configuration, err := env.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, webhookConfiguration, metav1.GetOptions{})
				if err != nil {
					return err
				}
				_, err = tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
				return errors.Join(err, trusts(configuration, secret.Data["ca.crt"]), webhookWorks(ctx))
			})
		})
	}
}

// trusts succeeds when the API server trusts bundle for each webhook.
func trusts(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, bundle []byte) error {
	for _, webhook := range configuration.Webhooks {
		if len(bundle) == 0 || !bytes.Equal(webhook.ClientConfig.CABundle, bundle) {
			return fmt.Errorf("webhook %s trusts %q, want %q", webhook.Name, webhook.ClientConfig.CABundle, bundle)
		}
	}
	return nil
}
