// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// Metrics are served over TLS, with the certificate for the Service of the manifests, to
// accounts with the ClusterRole of the manifests alone.
func TestMetricsAccess(t *testing.T) {
	const reader, role = "prometheus", "nstance-operator-metrics-reader"
	env.CreateAccount(t, reader, role)
	port := 0
	require.NoError(t, controlplane.FillInPorts([]*int{&port}))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	env.RunStandby(t, "--metrics-address", address)

	client := metricsClient(t)
	for account, want := range map[string]int{"": http.StatusUnauthorized, "default": http.StatusForbidden, reader: http.StatusOK} {
		token := ""
		if account != "" {
			token = tokenOf(t, account)
		}
		// Certificate and rights come from caches.
		testcluster.Eventually(t, time.Minute, fmt.Sprintf("account %q gets status %d", account, want), func(ctx context.Context) error {
			status, err := getMetrics(ctx, client, address, token)
			if err == nil && status != want {
				err = fmt.Errorf("status %d", status)
			}
			return err
		})
	}
}

// metricsClient trusts the CA that the operator has written to its webhook configuration.
func metricsClient(t *testing.T) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	testcluster.Eventually(t, time.Minute, "the webhooks have a CA bundle", func(ctx context.Context) error {
		configuration, err := env.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, webhookConfiguration, metav1.GetOptions{})
		if err == nil && !roots.AppendCertsFromPEM(configuration.Webhooks[0].ClientConfig.CABundle) {
			err = errors.New("no certificate")
		}
		return err
	})
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "nstance-operator-metrics." + installation.Namespace + ".svc",
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func tokenOf(t *testing.T, account string) string {
	t.Helper()
	response, err := env.Kube.CoreV1().ServiceAccounts(installation.Namespace).
		CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return response.Status.Token
}

// getMetrics returns the status of a scrape.
func getMetrics(ctx context.Context, client *http.Client, address, token string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", strings.TrimSpace("Bearer "+token))
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}
