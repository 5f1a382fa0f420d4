// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googleapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
)

// serve returns a client of a server that responds with a status and a body, and the last
// request.
func serve(t *testing.T, status int, body string) (*Client, *http.Request) {
	t.Helper()
	last := new(http.Request)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		*last = *r
		last.Header = r.Header.Clone()
		last.Header.Set("Body", string(data))
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	source := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "secret"})
	return New(server.URL+"/v1/", WithToken(http.DefaultTransport, source)), last
}

func TestCall(t *testing.T) {
	client, last := serve(t, http.StatusOK, `{"name":"n"}`)
	var out struct{ Name string }
	require.NoError(t, client.DoJSON(t.Context(), Call{
		Name: "a.b", Method: http.MethodPost, Path: []string{"o", "a/b ü"}, Query: url.Values{"q": {"x&y"}}, Body: map[string]int{"n": 1},
	}, &out))
	assert.Equal(t, "n", out.Name)
	assert.Equal(t, "/v1/o/a%2Fb%20%C3%BC", last.URL.EscapedPath())
	assert.Equal(t, "x&y", last.URL.Query().Get("q"))
	assert.JSONEq(t, `{"n":1}`, last.Header.Get("Body"))
	assert.Equal(t, "application/json", last.Header.Get("Content-Type"))
	assert.Equal(t, "Bearer secret", last.Header.Get("Authorization"))
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name, body          string
		status              int
		want                string
		notFound, throttled bool
	}{
		{name: "of the API", status: 404, body: `{"error":{"code":404,"message":"no vm","errors":[{"reason":"notFound"}]}}`, want: "a.b: HTTP 404 notFound: no vm", notFound: true},
		{name: "with a name", status: 404, body: `{"error":{"code":404,"status":"NOT_FOUND","message":"no secret"}}`, want: "a.b: HTTP 404 NOT_FOUND: no secret"},
		{name: "with a name of something between", status: 404, body: `{"error":{"status":"NOT_FOUND","message":"no route"}}`, want: "a.b: HTTP 404: no route"},
		{name: "of a proxy", status: 404, body: `<html>nginx</html>`, want: "a.b: HTTP 404: Not Found"},
		{name: "as text", status: 404, body: "No such object: a/b\n", want: "a.b: HTTP 404: No such object: a/b"},
		{name: "as text that is cut within a character", status: 404, body: strings.Repeat("x", maxText-1) + "é", want: "a.b: HTTP 404: " + strings.Repeat("x", maxText-1)},
		{name: "empty", status: 503, want: "a.b: HTTP 503: Service Unavailable"},
		{name: "a redirect", status: 302, want: "a.b: HTTP 302: Found"},
		{name: "throttled", status: 403, body: `{"error":{"message":"slow","errors":[{"reason":"rateLimitExceeded"}]}}`, want: "a.b: HTTP 403 rateLimitExceeded: slow", throttled: true},
		{name: "details", status: 403, body: `{"error":{"message":"slow","details":[{"reason":"RATE_LIMIT_EXCEEDED"}]}}`, want: "a.b: HTTP 403 RATE_LIMIT_EXCEEDED: slow", throttled: true},
		{name: "forbidden", status: 403, body: `{"error":{"message":"no","errors":[{"reason":"forbidden"}]}}`, want: "a.b: HTTP 403 forbidden: no"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, _ := serve(t, tc.status, tc.body)
			_, err := client.Do(t.Context(), Call{Name: "a.b", Method: http.MethodGet})
			require.EqualError(t, err, tc.want)
			assert.Equal(t, tc.notFound, IsNotFound(err))
			assert.Equal(t, tc.throttled, IsThrottled(err))
		})
	}
	client, _ := serve(t, http.StatusOK, "<html>")
	assert.ErrorContains(t, client.DoJSON(t.Context(), Call{Name: "a.b", Method: http.MethodGet}, new(any)), "decode the response")
}

// TestLateRequests are not sent.
func TestLateRequests(t *testing.T) {
	client, last := serve(t, http.StatusOK, "")
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err := client.Do(ctx, Call{Method: http.MethodDelete})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Nil(t, last.URL, "a request was sent")
}

// TestNoCredentials: they are looked for with each request until there are some.
func TestNoCredentials(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
	transport := NewTransport("scope").(*authorized)
	client := New("http://127.0.0.1:1", transport)
	_, err := client.Do(t.Context(), Call{Name: "a.b", Method: http.MethodGet})
	require.ErrorContains(t, err, "no application default credentials")
	require.NoError(t, os.WriteFile(path, []byte(`{"type":"authorized_user","client_id":"a","client_secret":"b","refresh_token":"c"}`), 0o600))
	_, err = transport.tokenSource()
	require.NoError(t, err)
}
