// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"nstance.dev/operator/e2e/controlplane"
)

// WebhookURL is where the operator serves the admission webhook.
func (o Operator) WebhookURL() string { return "https://" + address(o.WebhookPort) }

// installWebhook directs the API server to the webhook of an operator, unless it
// is directed to another one already.
func (n *Installation) installWebhook(ctx context.Context, o Operator) error {
	if n.webhook != 0 {
		return nil
	}
	base := filepath.Join(n.options.Manifests, "webhook")
	objects, err := controlplane.Render(base)
	if err != nil {
		return err
	}
	var configurations []*unstructured.Unstructured
	for _, object := range objects {
		// The Service is for an operator inside of the cluster.
		if object.GetKind() != "ValidatingWebhookConfiguration" {
			continue
		}
		if err := redirect(object, o.WebhookURL()); err != nil {
			return fmt.Errorf("redirect the webhooks of %s: %w", base, err)
		}
		configurations = append(configurations, object)
	}
	if err := controlplane.Apply(ctx, n.cp.AdminConfig(), fieldManager, configurations); err != nil {
		return err
	}
	n.webhook = o.WebhookPort
	return nil
}

// redirect makes the API server call url instead of the webhooks' Service. The operator
// adds the CA bundle.
func redirect(configuration *unstructured.Unstructured, url string) error {
	webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		fields, ok := webhook.(object)
		if !ok {
			return fmt.Errorf("a webhook is a %T, not a map", webhook)
		}
		path, found, err := unstructured.NestedString(fields, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("webhook %v has no path of a service", fields["name"])
		}
		fields["clientConfig"] = object{"url": url + path}
	}
	return unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks")
}
