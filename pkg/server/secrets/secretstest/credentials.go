// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// WatchCredentials makes a listener of the test the source of all credentials, and the
// service that they are for. It returns how many connections there were.
func WatchCredentials(t testing.TB) (connections *atomic.Int32) {
	t.Helper()
	connections = new(atomic.Int32)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	for name, value := range map[string]string{
		"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"),
		"AWS_ENDPOINT_URL": server.URL, "AWS_EC2_METADATA_SERVICE_ENDPOINT": server.URL,
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL + "/credentials",
		"GCE_METADATA_HOST":                  strings.TrimPrefix(server.URL, "http://"),
		"GOOGLE_APPLICATION_CREDENTIALS":     "", "HOME": t.TempDir(),
	} {
		t.Setenv(name, value)
	}
	return connections
}
