// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// serving returns a cluster that serves on a port.
func serving(t *testing.T) (*pvetest.Server, *Options) {
	s := newCluster()
	s.Start(t)
	return s, testOptions(s)
}

// listError returns the error of a list. It repeats a list that has timed out: on a busy machine a
// handshake may take longer than a client waits.
func listError(t *testing.T, o *Options) error {
	t.Helper()
	api, err := NewAPI(o, testShard)
	require.NoError(t, err)
	for {
		_, err = api.List(t.Context())
		var failed net.Error
		if t.Context().Err() != nil || !errors.As(err, &failed) || !failed.Timeout() {
			return err
		}
	}
}

// TestCertificates: a node is trusted by its fingerprint or by who has signed its
// certificate, and not otherwise.
func TestCertificates(t *testing.T) {
	s, options := serving(t)
	require.NoError(t, listError(t, options))
	var pairs []string
	for n := 0; n < len(s.Fingerprint); n += 2 {
		pairs = append(pairs, strings.ToUpper(s.Fingerprint[n:n+2]))
	}
	options.Connection.Fingerprints = []string{strings.Repeat("00", 32), strings.Join(pairs, ":")}
	require.NoError(t, listError(t, options))
	options.Connection.Fingerprints = []string{strings.Repeat("00", 32)}
	require.ErrorContains(t, listError(t, options), "fingerprint "+s.Fingerprint)
	options.Connection.Fingerprints = nil
	require.ErrorContains(t, listError(t, options), "certificate signed by unknown authority")

	connection, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer connection.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: connection.ConnectionState().PeerCertificates[0].Raw}
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(block), 0o600))
	options.Connection.CAFile = ca
	require.NoError(t, listError(t, options))

	require.NoError(t, os.WriteFile(ca, []byte("none"), 0o600))
	_, err = NewAPI(options, testShard)
	require.ErrorContains(t, err, "has no certificates")
}

// TestToken comes from the environment or a file, and is in no error.
func TestToken(t *testing.T) {
	_, options := serving(t)
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(pvetest.Token+"\n"), 0o600))
	options.Connection.TokenEnv, options.Connection.TokenFile = "", path
	require.NoError(t, listError(t, options))

	secret := "11111111-2222-3333-4444-555555555555"
	for _, text := range []string{"", secret, "root@pam=" + secret, "root@pam!xy:" + secret, "root@pam!xy=" + secret + "\nx"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := NewAPI(options, testShard)
		require.ErrorContains(t, err, path+" has no API token of the form")
		assert.NotContains(t, err.Error(), secret)
	}
	require.NoError(t, os.WriteFile(path, []byte("root@pam!xy="+secret), 0o600))
	err := listError(t, options)
	require.ErrorContains(t, err, "HTTP 401")
	assert.NotContains(t, err.Error(), secret)

	// Nor in one of the connection.
	options.Connection.Endpoints = []string{"https://127.0.0.1:1"}
	err = listError(t, options)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), secret)
}

// TestEndpoints: a node that does not respond is passed over, and a request is sent once.
func TestEndpoints(t *testing.T) {
	s, options := serving(t)
	options.Connection.Endpoints = []string{"https://127.0.0.1:1", s.URL}
	require.NoError(t, listError(t, options))

	// A request that may have arrived is not sent to another node.
	s.SetFaults(&pvetest.Fault{Verb: http.MethodPost})
	options.Connection.Endpoints = []string{s.URL, s.URL}
	api, err := NewAPI(options, testShard)
	require.NoError(t, err)
	_, err = api.Launch(t.Context(), request(t))
	require.Error(t, err)
	assert.Equal(t, 1, s.Calls()["POST nodes/{node}/qemu/{vmid}/clone"])
}

// TestRedirects are not followed: the token is for the API only.
func TestRedirects(t *testing.T) {
	var elsewhere []*http.Request
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { elsewhere = append(elsewhere, r) }))
	defer other.Close()
	api := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer api.Close()
	_, options := serving(t)
	options.Connection.Endpoints = []string{api.URL}
	options.Connection.Fingerprints = []string{pvetest.FingerprintOf(api.Certificate())}
	require.ErrorContains(t, listError(t, options), "HTTP 302")
	assert.Empty(t, elsewhere)
}

// TestMessages are in the body or, of older versions, in the status line.
func TestMessages(t *testing.T) {
	for _, tc := range []struct {
		name, head, body, want string
		definite               bool
	}{
		{"body", "500 Internal Server Error", `{"data":null,"message":"no such VM\n"}`, "HTTP 500: no such VM", true},
		{"status line", "500 can't lock file - got timeout", `{"data":null}`, "HTTP 500: can't lock file - got timeout", true},
		{
			"parameters", "400 Parameter verification failed.", `{"data":null,"errors":{"newid":"is wrong\n","a":"is missing"}}`,
			"HTTP 400: Parameter verification failed. (a: is missing) (newid: is wrong)", true,
		},
		{"a proxy", "502 Bad Gateway", "<html>", "HTTP 502: ", false},
		{"no message", "500 Internal Server Error", "", "HTTP 500: ", false},
		{"another node", "596 tls_process_server_certificate", "", "HTTP 596: tls_process", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				connection, stream, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer connection.Close()
				fmt.Fprintf(stream, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", tc.head, len(tc.body), tc.body)
				stream.Flush()
			}))
			server.StartTLS()
			defer server.Close()
			_, options := serving(t)
			options.Connection.Endpoints, options.Connection.Fingerprints = []string{server.URL}, []string{pvetest.FingerprintOf(server.Certificate())}
			api, err := NewAPI(options, testShard)
			require.NoError(t, err)
			_, err = api.client.clusterStatus(t.Context())
			var response *apiError
			require.ErrorAs(t, err, &response)
			assert.Contains(t, response.Error(), tc.want)
			assert.Equal(t, tc.definite, response.isDefinite())
		})
	}
}

// TestTheLastMoment: a process that was paused makes no call after its time is over.
func TestTheLastMoment(t *testing.T) {
	s, options := serving(t)
	api, err := NewAPI(options, testShard)
	require.NoError(t, err)
	s.Calls()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = api.Launch(ctx, request(t))
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, api.Terminate(ctx, []cloud.VM{{ID: "a"}}), 1)
	assert.Empty(t, s.Calls())
}
