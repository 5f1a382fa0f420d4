// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
)

// Operator is how one operator is run.
type Operator struct {
	// Component is the name it runs under, such as "operator".
	Component string
	// HTTPPort serves health and metrics. Zero means any free one.
	HTTPPort int
	// WebhookPort serves the admission webhook. Zero means any free one.
	WebhookPort int
	// Server is the URL at which the operator reaches the API server. Empty
	// means the API server's own.
	Server string
	// Flags are added to the command line.
	Flags []string
}

// URL is where the operator serves health and metrics.
func (o Operator) URL() string { return "http://" + address(o.HTTPPort) }

// StartOperator runs an operator with the rights of its ServiceAccount and
// nothing more, and returns it with its ports filled in once its caches have
// synced. Several may run: one leads, and the API server calls the webhook of the one
// that was started first.
func (n *Installation) StartOperator(ctx context.Context, o Operator) (Operator, error) {
	if err := controlplane.FillInPorts([]*int{&o.HTTPPort, &o.WebhookPort}); err != nil {
		return o, err
	}
	if err := n.installWebhook(ctx, o); err != nil {
		return o, err
	}
	token, err := n.token(ctx)
	if err != nil {
		return o, err
	}
	kubeconfig, err := n.cp.KubeconfigThrough(cmp.Or(o.Server, n.cp.Server()), o.Component, token)
	if err != nil {
		return o, err
	}
	_, err = n.cp.Run(ctx, controlplane.Spec{
		Name: o.Component,
		Argv: append([]string{
			n.options.Operator,
			"--kubeconfig", kubeconfig,
			"--namespace", Namespace,
			"--cluster-id", ClusterID,
			"--tenant", Tenant,
			"--http-address", address(o.HTTPPort),
			"--webhook-address", address(o.WebhookPort),
			"--capi-kubeconfig-server", n.cp.Server(),
		}, o.Flags...),
		Ports: []int{o.HTTPPort, o.WebhookPort},
		Ready: controlplane.Probe{URL: o.URL() + "/readyz"},
	})
	return o, err
}

// token requests a token of the operator's ServiceAccount with the lifetime of the
// certificates: nothing renews it, as the kubelet does for a Pod.
func (n *Installation) token(ctx context.Context) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(certificateLifetime.Seconds())),
	}}
	response, err := n.client.CoreV1().ServiceAccounts(Namespace).
		CreateToken(ctx, serviceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of ServiceAccount %s/%s: %w", Namespace, serviceAccount, err)
	}
	return response.Status.Token, nil
}
