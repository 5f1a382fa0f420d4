// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Kind is a fault of a service or of the network.
type Kind int

// The faults of a request.
const (
	// Lost means that the request has its effect and the response is lost.
	Lost Kind = iota
	// Unavailable is an internal error of the service, and Throttled a rejection for too many
	// requests.
	Unavailable
	Throttled
	// ErrorPage is an error page of a proxy, with the status 404.
	ErrorPage
	// Denied is a missing permission.
	Denied
	// Quoting is a rejection whose message quotes the request.
	Quoting
	// Garbled is a response that is cut off.
	Garbled
)

// kinds are all faults.
var kinds = map[string]Kind{
	"lost": Lost, "unavailable": Unavailable, "throttled": Throttled, "error page": ErrorPage,
	"denied": Denied, "quoting": Quoting, "garbled": Garbled,
}

// Faults are injected into the requests of a service.
type Faults struct {
	mu       sync.Mutex
	requests int
	from, to int
	kind     Kind
	// permissions are the permissions that the requests so far have needed.
	permissions map[string]bool
}

// Set gives count requests a fault, beginning with the request number from; 0 is the next
// request.
func (f *Faults) Set(kind Kind, from, count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kind, f.requests, f.from, f.to = kind, 0, from, from+count
}

// Count returns how many requests there were since Set.
func (f *Faults) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

// Permissions returns the permissions that the requests since the last call have needed, in
// order.
func (f *Faults) Permissions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	permissions := slices.Sorted(maps.Keys(f.permissions))
	clear(f.permissions)
	return permissions
}

// next returns the fault of a request that needs a permission.
func (f *Faults) next(permission string) (Kind, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.permissions[permission] = true
	f.requests++
	return f.kind, f.from < f.requests && f.requests <= f.to
}

// service imitates one service.
type service interface {
	// serve handles a request. The mutex of the service is locked.
	serve(request *http.Request, body []byte) response
	// permission returns the permission that a request needs.
	permission(request *http.Request) string
	// fail returns the response of the service for an error.
	fail(kind Kind, body []byte) response
}

// response is the response of a service.
type response struct {
	code        int
	contentType string
	header      http.Header
	body        []byte
}

// start starts a service with faults. It stops with the test.
func start(t testing.TB, s service) (url string, faults *Faults) {
	t.Helper()
	faults = &Faults{permissions: map[string]bool{}}
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		kind, faulty := faults.next(s.permission(request))
		var got response
		switch {
		case !faulty || kind == Lost || kind == Garbled:
			mu.Lock()
			got = s.serve(request, body)
			mu.Unlock()
		case kind == ErrorPage:
			got = response{code: http.StatusNotFound, contentType: "text/html", body: []byte("<html>Not Found</html>")}
		default:
			got = s.fail(kind, body)
		}
		if faulty && kind == Lost {
			panic(http.ErrAbortHandler)
		}
		if faulty && kind == Garbled {
			got.body = slices.Concat(bytes.TrimSuffix(got.body, []byte("}")), []byte(`,"`))
		}
		for name, values := range got.header {
			w.Header()[name] = values
		}
		w.Header().Set("Content-Type", got.contentType)
		w.WriteHeader(got.code)
		_, _ = w.Write(got.body)
	}))
	t.Cleanup(server.Close)
	return server.URL, faults
}

// quote is the message of a rejection that quotes the request.
func quote(body []byte) string { return fmt.Sprintf("the value %s is not accepted", body) }

// WatchCredentials makes a listener of the test the source of all credentials, and the
// service that they are for. It returns the number of connections so far.
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
