// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// metadataPath begins the paths of the metadata server.
const metadataPath = "/computeMetadata/v1/"

// MetadataClient returns a client for the metadata server of a machine. It needs a server
// that StartInMemory has started.
func (s *Server) MetadataClient(name string) *http.Client {
	return &http.Client{Transport: onMachine{name, &http.Transport{DialContext: s.listener.Dial}}}
}

// onMachine sends requests from a machine.
type onMachine struct {
	name string
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (m onMachine) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = m.name
	return m.base.RoundTrip(r)
}

// serveMetadata serves the metadata of the machine whose name is the host of the request.
func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	vm := s.find(r.Host)
	if vm == nil || r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "Forbidden", http.StatusForbidden)
		return
	}
	text, found := map[string]string{
		"instance/id": vm.ID, "instance/name": vm.Name, "instance/zone": "projects/1234567890/zones/" + vm.zone,
		"project/project-id": Project,
	}[r.URL.Path[len(metadataPath):]]
	if !found {
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	}
	w.Header().Set("Metadata-Flavor", "Google")
	_, _ = w.Write([]byte(text)) // the client may have closed the connection
}

// tokenPath is where service accounts get tokens.
const tokenPath = "/token"

// serveToken responds to a service account that presents an assertion.
func serveToken(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" || r.FormValue("assertion") == "" {
		http.Error(w, "no assertion", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": Token, "token_type": "Bearer", "expires_in": 3600})
}

// Credentials writes the key of a service account, for application default credentials, and
// returns its path.
func (s *Server) Credentials(t testing.TB) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": Project, "private_key_id": "1", "client_id": "1",
		"client_email": "nstance@" + Project + ".iam.gserviceaccount.com", "token_uri": s.URL + tokenPath,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "credentials.json")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}
