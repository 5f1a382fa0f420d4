// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googlesecrets_test

import (
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/googlesecrets"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/storage"
)

func options(url, cluster string) googlesecrets.Options {
	token := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: secretstest.GoogleToken})
	return googlesecrets.Options{
		Project:    secretstest.GoogleProject,
		Prefix:     config.DefaultSecretsPrefix(config.SecretsInGoogle, cluster),
		Transport:  googleapi.WithToken(http.DefaultTransport, token),
		Endpoint:   url,
		RetryDelay: time.Microsecond,
	}
}

func TestConformance(t *testing.T) {
	secretstest.Test(t, func(t *testing.T) secretstest.Backend {
		url, faults := secretstest.StartGoogle(t)
		return secretstest.Backend{
			Open:   func(cluster string) secrets.Store { return googlesecrets.New(options(url, cluster)) },
			Faults: faults, Provider: config.SecretsInGoogle, MaxValue: 65536,
		}
	})
}

// TestSecretsOfTheServersAreTheirFirstVersion: a later version of another writer changes
// nothing.
func TestSecretsOfTheServersAreTheirFirstVersion(t *testing.T) {
	url, _ := secretstest.StartGoogle(t)
	o := options(url, "a")
	s := googlesecrets.New(o)
	require.NoError(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("first")))
	require.ErrorContains(t, s.Set(t.Context(), storage.AuthoritySecret, []byte("second")), "cannot be replaced")
	require.ErrorContains(t, s.Create(t.Context(), "name", []byte("x")), "only the secrets of the servers")

	const resource = "projects/" + secretstest.GoogleProject + "/secrets/nstance-a__ca_2Ekey"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/"+resource+":addVersion",
		strings.NewReader(fmt.Sprintf(`{"payload": {"data": "c2Vjb25k", "dataCrc32c": "%d"}}`, crc32.Checksum([]byte("second"), crc32.MakeTable(crc32.Castagnoli)))))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := o.Transport.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)

	got, err := s.Get(t.Context(), storage.AuthoritySecret)
	require.NoError(t, err)
	assert.Equal(t, "first", string(got))
	got, err = googlesecrets.Access(t.Context(), o, resource)
	require.NoError(t, err)
	assert.Equal(t, "second", string(got))
	got, err = googlesecrets.Access(t.Context(), o, resource+"/versions/1")
	require.NoError(t, err)
	assert.Equal(t, "first", string(got))
}

// TestNoOlderVersionIsRead after a newer one: reads of the newest version lag.
func TestNoOlderVersionIsRead(t *testing.T) {
	url, _ := secretstest.StartGoogleWith(t, secretstest.GoogleOptions{Lags: true})
	writer, reader := googlesecrets.New(options(url, "a")), googlesecrets.New(options(url, "a"))
	values := []string{"first", "second", "third"}
	for n, value := range values {
		require.NoError(t, writer.Set(t.Context(), "name", []byte(value)))
		for range 5 {
			got, err := writer.Get(t.Context(), "name")
			require.NoError(t, err)
			assert.Equal(t, value, string(got), "what the process itself has written")
		}
		newest := 0
		for range 5 {
			got, err := reader.Get(t.Context(), "name")
			require.NoError(t, err)
			at := slices.Index(values, string(got))
			assert.GreaterOrEqual(t, at, newest, "the version is older than one that was read before")
			newest = at
		}
		assert.Equal(t, n, newest)
	}
	// The versions of a secret that was deleted prove nothing.
	require.NoError(t, writer.Delete(t.Context(), "name"))
	require.NoError(t, writer.Set(t.Context(), "name", []byte("again")))
	for _, s := range []*googlesecrets.Store{writer, reader} {
		got, err := s.Get(t.Context(), "name")
		require.NoError(t, err)
		assert.Equal(t, "again", string(got))
	}
}

// TestLocations: a project where automatic replication is not allowed.
func TestLocations(t *testing.T) {
	url, _ := secretstest.StartGoogleWith(t, secretstest.GoogleOptions{Locations: []string{"europe-west1", "europe-west4"}})
	o := options(url, "a")
	require.ErrorContains(t, googlesecrets.New(o).Create(t.Context(), storage.AuthoritySecret, []byte("x")), "FAILED_PRECONDITION")
	o.Locations = []string{"europe-west1", "europe-west4"}
	require.NoError(t, googlesecrets.New(o).Create(t.Context(), storage.AuthoritySecret, []byte("x")))
	got, err := googlesecrets.New(o).Get(t.Context(), storage.AuthoritySecret)
	require.NoError(t, err)
	assert.Equal(t, "x", string(got))
}

// TestErrorsThatQuoteTheRequest: no error has the value, even if the response quotes it.
func TestErrorsThatQuoteTheRequest(t *testing.T) {
	const quoted = "c2VjcmV0" // "secret" in base64
	for name, body := range map[string]string{
		"text":              "cannot handle %s",
		"of another API":    `{"error": {"code": 400, "message": %q, "errors": [{"reason": "invalid"}]}}`,
		"of the service":    `{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": %q, "details": [{"reason": %[1]q}]}}`,
		"with another code": `{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": %q}}`,
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, ":addVersion") {
					_, _ = io.WriteString(w, "{}")
					return
				}
				request, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Contains(t, string(request), quoted)
				w.WriteHeader(http.StatusBadRequest)
				_, _ = fmt.Fprintf(w, body, request)
			}))
			defer server.Close()
			err := googlesecrets.New(options(server.URL, "a")).Set(t.Context(), "name", []byte("secret"))
			require.ErrorContains(t, err, "secretmanager.projects.secrets.addVersion: HTTP 400")
			assert.NotContains(t, err.Error(), quoted)
		})
	}
}
