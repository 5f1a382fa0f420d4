// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"bytes"
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

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The objects that configure the webhook and its CA in the API server.
const (
	webhookConfiguration = "nstance-operator"
	webhookSecret        = "nstance-webhook-cert"
)

// createDry has the API server validate a new pool without creating it.
func createDry(ctx context.Context, pool *v1beta1.NstanceMachinePool) error {
	_, err := env.NstanceMachinePools().
		Create(ctx, pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// webhookWorks succeeds when the API server calls the webhook.
func webhookWorks(ctx context.Context) error {
	return invalid(createDry(ctx, testcluster.NewNstanceMachinePool("nowhere", "us-west-9z")),
		"nstancemachinepools.nstance.dev", `spec.shards[0]: Invalid value: "us-west-9z"`, "us-west-2a, us-west-2b, us-west-2c")
}

// The webhook rejects groups that are in use, and shards that are not configured.
func TestWebhookRejectsGroupsAndShards(t *testing.T) {
	t.Parallel()
	const name = "validated"
	env.CreatePoolForTest(t, name, 1)
	env.UntilRunning(t, name, 1)
	testcluster.Eventually(t, time.Minute, "a shard that is not configured is rejected", webhookWorks)
	testcluster.Eventually(t, time.Minute, "a group that is in use is rejected", func(ctx context.Context) error {
		double := testcluster.NewNstanceMachinePool("double", shardIDs...)
		double.Spec.Group = name
		return invalid(createDry(ctx, double), `spec.group: Invalid value: "validated"`, "pool validated")
	})
	testcluster.Eventually(t, time.Minute, "a shard that is added and not configured is rejected", func(ctx context.Context) error {
		_, err := env.PatchNstanceMachinePool(ctx, name, `{"spec":{"shards":["us-west-2a","us-west-9z"]}}`)
		return invalid(err, `spec.shards[1]: Invalid value: "us-west-9z"`)
	})
	// It does not validate other namespaces.
	elsewhere := testcluster.NewNstanceMachinePool("elsewhere", "us-west-9z")
	elsewhere.Namespace = metav1.NamespaceDefault
	_, err := env.Nstance.InfrastructureV1beta1().NstanceMachinePools(metav1.NamespaceDefault).
		Create(t.Context(), elsewhere, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Error(err)
	}
}

// While no operator runs, dynamic pools can be deleted, and pools can be created that the webhook
// would reject.
func TestMissingWebhookBlocksNothing(t *testing.T) {
	const name = "unguarded"
	runPool(t, name, 1, shardIDs...)
	testcluster.Eventually(t, time.Minute, "the webhook works", webhookWorks)
	operator := env.OperatorProcess()
	testcluster.Kill(t, operator)
	if err := createDry(t.Context(), testcluster.NewNstanceMachinePool("nowhere", "us-west-9z")); err != nil {
		t.Errorf("creating is blocked: %v", err)
	}
	if err := env.MachinePools().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting is blocked: %v", err)
	}
	testcluster.Eventually(t, time.Minute, "Cluster API deletes the pool", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err == nil && pool.DeletionTimestamp == nil {
			err = errors.New("it is not being deleted")
		}
		return err
	})
	env.ReleaseLease(t)
	testcluster.Start(t, operator)
	untilNothingIsLeft(t, name)
}

// A standby serves the webhook like the leader, with the same certificate.
func TestStandbyServesTheWebhook(t *testing.T) {
	standby := env.RunStandby(t)
	if leads(t, standby) {
		t.Fatal("the operator that started second leads")
	}
	testcluster.Eventually(t, time.Minute, "the standby answers", func(ctx context.Context) error {
		response, err := callWebhook(ctx, standby, testcluster.NewNstanceMachinePool("nowhere", "us-west-9z"))
		if err != nil {
			return err
		}
		if response.Allowed || response.Result == nil || !strings.Contains(response.Result.Message, "us-west-9z") {
			return fmt.Errorf("answered %+v", response)
		}
		response, err = callWebhook(ctx, standby, testcluster.NewNstanceMachinePool("somewhere", "us-west-2a"))
		if err == nil && !response.Allowed {
			err = fmt.Errorf("answered %+v", response.Result)
		}
		return err
	})
}

// callWebhook sends the AdmissionReview of the creation of a pool, as the API server would.
func callWebhook(ctx context.Context, operator installation.Operator, pool *v1beta1.NstanceMachinePool) (*admissionv1.AdmissionResponse, error) {
	secret, err := env.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, webhookSecret, metav1.GetOptions{})
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
			UID: "test", Operation: admissionv1.Create, Namespace: installation.Namespace, Name: pool.Name,
			Resource: metav1.GroupVersionResource(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools")),
			Object:   runtime.RawExtension{Raw: object},
		},
	})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, operator.WebhookURL(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&review); err != nil {
		return nil, err
	}
	if review.Response == nil || review.Response.UID != "test" {
		return nil, fmt.Errorf("%s: answered %+v", response.Status, review)
	}
	return review.Response, nil
}

// Changes of the certificate and of the CA bundle that the API server trusts are
// reverted.
func TestWebhookCertificateIsRepaired(t *testing.T) {
	testcluster.Eventually(t, time.Minute, "the webhook works", webhookWorks)
	secrets := env.Kube.CoreV1().Secrets(installation.Namespace)
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
		{"the CA bundle is removed", func(ctx context.Context) error {
			configurations := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
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
			require.NoError(t, c.damage(t.Context()))
			testcluster.Eventually(t, time.Minute, "the webhook works with a matching certificate", func(ctx context.Context) error {
				secret, err := secrets.Get(ctx, webhookSecret, metav1.GetOptions{})
				if err != nil {
					return err
				}
				configuration, err := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, webhookConfiguration, metav1.GetOptions{})
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
