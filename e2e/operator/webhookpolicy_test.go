// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	admissionregistration "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// as returns a client of a user whom RBAC allows everything, so that only policies reject.
func as(t *testing.T, user string) admissionregistration.AdmissionregistrationV1Interface {
	t.Helper()
	config := rest.CopyConfig(env.AdminConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client.AdmissionregistrationV1()
}

// A compromised operator would otherwise be sent every Secret that is written, or reject every
// write: its account may patch its webhook configuration.
func TestOperatorChangesNothingOfWebhooksButTheCABundle(t *testing.T) {
	t.Parallel()
	const reason = "the operator may change only caBundle of the webhooks in a webhook configuration"
	type configuration = admissionregistrationv1.ValidatingWebhookConfiguration
	operator, other := as(t, installation.OperatorUser), as(t, "system:serviceaccount:"+installation.Namespace+":other")
	// update writes a change in a dry run. The operator itself may write at the same time.
	update := func(ctx context.Context, client admissionregistration.AdmissionregistrationV1Interface, change func(*configuration)) error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			stored, err := client.ValidatingWebhookConfigurations().Get(ctx, webhookConfiguration, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(stored)
			_, err = client.ValidatingWebhookConfigurations().Update(ctx, stored, metav1.UpdateOptions{DryRun: dry.DryRun})
			return err
		})
	}
	rejected := map[string]func(*configuration){
		"rules": func(c *configuration) {
			c.Webhooks[0].Rules[0].APIGroups, c.Webhooks[0].Rules[0].Resources = []string{""}, []string{"secrets"}
		},
		"another rule": func(c *configuration) {
			c.Webhooks[1].Rules = append(c.Webhooks[1].Rules, c.Webhooks[0].Rules[0])
		},
		"failure policy":     func(c *configuration) { c.Webhooks[0].FailurePolicy = ptr.To(admissionregistrationv1.Fail) },
		"namespace selector": func(c *configuration) { c.Webhooks[1].NamespaceSelector = nil },
		"match conditions":   func(c *configuration) { c.Webhooks[0].MatchConditions = nil },
		// The webhook of the suite has a URL.
		"URL": func(c *configuration) { c.Webhooks[0].ClientConfig.URL = ptr.To("https://example.com/") },
		"service": func(c *configuration) {
			c.Webhooks[0].ClientConfig.URL = nil
			c.Webhooks[0].ClientConfig.Service = &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "other"}
		},
		"timeout": func(c *configuration) { c.Webhooks[0].TimeoutSeconds = ptr.To[int32](30) },
		"another webhook": func(c *configuration) {
			added := c.Webhooks[0].DeepCopy()
			added.Name = "added.nstance.dev"
			c.Webhooks = append(c.Webhooks, *added)
		},
		"fewer webhooks": func(c *configuration) { c.Webhooks = c.Webhooks[:1] },
		"no webhooks":    func(c *configuration) { c.Webhooks = nil },
		"labels":         func(c *configuration) { metav1.SetMetaDataLabel(&c.ObjectMeta, "example.com/a", "b") },
		"annotations":    func(c *configuration) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, "example.com/a", "b") },
		"finalizers":     func(c *configuration) { c.Finalizers = append(c.Finalizers, "example.com/a") },
	}
	testcluster.Eventually(t, time.Minute, "the policy holds", func(ctx context.Context) error {
		return forbidden(update(ctx, operator, rejected["rules"]), reason)
	})

	for name, change := range rejected {
		if err := forbidden(update(t.Context(), operator, change), reason+", and may not change other fields"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		require.NoError(t, update(t.Context(), other, change), "another account changes %s", name)
	}
	for name, change := range map[string]func(*configuration){
		"nothing": func(*configuration) {},
		"the CA bundle": func(c *configuration) {
			for i := range c.Webhooks {
				c.Webhooks[i].ClientConfig.CABundle = append(slices.Clone(c.Webhooks[i].ClientConfig.CABundle), '\n')
			}
		},
	} {
		require.NoError(t, update(t.Context(), operator, change), name)
	}

	created := &configuration{ObjectMeta: metav1.ObjectMeta{Name: "another"}}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "another"}}
	_, err := operator.ValidatingWebhookConfigurations().Create(t.Context(), created, metav1.CreateOptions{DryRun: dry.DryRun})
	require.NoError(t, forbidden(err, reason+", and may not create or delete"))
	_, err = operator.MutatingWebhookConfigurations().Create(t.Context(), mutating, metav1.CreateOptions{DryRun: dry.DryRun})
	require.NoError(t, forbidden(err, reason+", and may not create or delete"))
	err = operator.ValidatingWebhookConfigurations().Delete(t.Context(), webhookConfiguration, dry)
	require.NoError(t, forbidden(err, reason+", and may not create or delete"))
	_, err = other.ValidatingWebhookConfigurations().Create(t.Context(), created, metav1.CreateOptions{DryRun: dry.DryRun})
	require.NoError(t, err, "another account creates a configuration")
}
