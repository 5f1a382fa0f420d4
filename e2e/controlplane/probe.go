// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Probe checks whether a component is ready: a GET of URL returns 200.
type Probe struct {
	URL string `json:"url,omitempty"`
	// CAFile verifies the server of an https URL.
	CAFile string `json:"caFile,omitempty"`
}

// wait returns nil once the probe succeeded, or its last error when ctx is done.
func (p Probe) wait(ctx context.Context) error {
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	var last error
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = p.try(ctx, client)
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func (p Probe) client() (*http.Client, error) {
	transport := &http.Transport{}
	if p.CAFile != "" {
		pem, err := os.ReadFile(p.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the CA for %s: %w", p.URL, err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, Timeout: 2 * time.Second}, nil
}

func (p Probe) try(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s answered %s", p.URL, response.Status)
	}
	return nil
}
