// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package metadata

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/agent/notice"
)

// machines is a source whose instances are set by the test.
type machines struct {
	mu       sync.Mutex
	instance *Instance
	userdata []byte
	notice   *Notice
}

func (m *machines) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *machines) Instance(context.Context, netip.Addr) (*Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.instance == nil {
		return nil, ErrUnknown
	}
	return m.instance, nil
}

func (m *machines) Userdata(context.Context, *Instance) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.userdata, nil
}

func (m *machines) Notice(*Instance) (*Notice, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notice, nil
}

// fixture is a service with one instance, to which the test connects.
type fixture struct {
	*machines
	t      *testing.T
	url    string
	client *http.Client
}

func newFixture(t *testing.T) *fixture {
	source := &machines{
		instance: &Instance{Machine: "machine-1", ID: "knd-1", Values: map[string]string{
			"instance-id":                 "knd-1",
			"placement/availability-zone": "us-west-2a",
			"tags/instance/nstance:group": "workers",
		}},
		userdata: []byte("#!/bin/sh\n"),
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- Serve(ctx, listener, source) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-served)
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &fixture{machines: source, t: t, url: "http://" + listener.Addr().String(), client: &http.Client{Transport: transport}}
}

// do returns status and body of a response.
func (f *fixture) do(method, path string, headers ...string) (int, string) {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, nil)
	require.NoError(f.t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := f.client.Do(request)
	require.NoError(f.t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(f.t, err)
	require.NoError(f.t, response.Body.Close())
	return response.StatusCode, string(body)
}

func (f *fixture) token() string {
	f.t.Helper()
	code, token := f.do(http.MethodPut, tokenPath, lifetimeHeader, "60")
	require.Equal(f.t, http.StatusOK, code)
	return token
}

// get returns status and body of a response to a request with a new token.
func (f *fixture) get(path string) (int, string) {
	f.t.Helper()
	return f.do(http.MethodGet, path, tokenHeader, f.token())
}

var paths = []string{"/", "/latest/", "/latest/meta-data/", "/latest/meta-data/instance-id", "/latest/user-data", "/latest/no-such"}

// TestEveryRequestNeedsAToken. A proxy gets no token.
func TestEveryRequestNeedsAToken(t *testing.T) {
	f := newFixture(t)
	token := f.token()
	for _, path := range paths {
		for _, wrong := range []string{"", "x", token[:len(token)-1], strings.ToUpper(token), token + "A"} {
			code, body := f.do(http.MethodGet, path, tokenHeader, wrong)
			assert.Equal(t, http.StatusUnauthorized, code, "%s with token %q", path, wrong)
			assert.Empty(t, body)
		}
		code, body := f.do(http.MethodGet, path, tokenHeader, token, "X-Forwarded-For", "10.0.0.1")
		assert.Equal(t, http.StatusForbidden, code, path)
		assert.Empty(t, body)
		code, _ = f.do(http.MethodPost, path, tokenHeader, token)
		assert.Equal(t, http.StatusMethodNotAllowed, code, path)
	}
	for lifetime, want := range map[string]int{"": 400, "0": 400, "-1": 400, "21601": 400, "x": 400, "1": 200, "21600": 200} {
		code, _ := f.do(http.MethodPut, tokenPath, lifetimeHeader, lifetime)
		assert.Equal(t, want, code, "lifetime %q", lifetime)
	}
	code, body := f.do(http.MethodPut, tokenPath, lifetimeHeader, "60", "X-Forwarded-For", "10.0.0.1")
	assert.Equal(t, http.StatusForbidden, code)
	assert.Empty(t, body)
	code, _ = f.do(http.MethodGet, tokenPath, tokenHeader, token)
	assert.Equal(t, http.StatusMethodNotAllowed, code)
}

// TestTokensAreThoseOfOneMachine, for their lifetime.
func TestTokensAreThoseOfOneMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTokens()
		token := all.issue("machine-1", time.Now().Add(time.Minute))
		assert.True(t, all.valid(token, "machine-1", time.Now()))
		assert.False(t, all.valid(token, "machine-2", time.Now()))
		restarted := newTokens()
		assert.False(t, restarted.valid(token, "machine-1", time.Now()))
		<-time.After(59 * time.Second)
		assert.True(t, all.valid(token, "machine-1", time.Now()))
		<-time.After(time.Second)
		assert.False(t, all.valid(token, "machine-1", time.Now()))
	})
}

// TestAnUnknownAddressGetsNothing, whatever it requests.
func TestAnUnknownAddressGetsNothing(t *testing.T) {
	f := newFixture(t)
	token := f.token()
	f.set(func() { f.instance = nil })
	for _, path := range append(paths, tokenPath) {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			code, body := f.do(method, path, tokenHeader, token, lifetimeHeader, "60")
			assert.Equal(t, http.StatusForbidden, code, "%s %s", method, path)
			assert.Empty(t, body)
		}
	}
}

// TestAConnectionBelongsToOneMachine: the address passes to another machine while a
// connection of the first is open.
func TestAConnectionBelongsToOneMachine(t *testing.T) {
	f := newFixture(t)
	code, _ := f.get("/latest/user-data")
	require.Equal(t, http.StatusOK, code)
	f.set(func() {
		f.instance = &Instance{Machine: "machine-2", ID: "knd-2", Values: map[string]string{"instance-id": "knd-2"}}
	})
	code, body := f.do(http.MethodPut, tokenPath, lifetimeHeader, "60")
	assert.Equal(t, http.StatusForbidden, code)
	assert.Empty(t, body)
	// The connection was closed.
	code, id := f.get("/latest/meta-data/instance-id")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "knd-2", id)
}

// TestAClientFindsEverythingByLists, as cloud-init does, in every version.
func TestAClientFindsEverythingByLists(t *testing.T) {
	f := newFixture(t)
	f.set(func() {
		f.notice = &Notice{Action: "terminate", Time: time.Unix(1_600_000_000, 5).In(time.FixedZone("east", 3600))}
	})
	code, list := f.get("/")
	require.Equal(t, http.StatusOK, code)
	for _, version := range strings.Split(list, "\n") {
		found := map[string]string{}
		var walk func(string)
		walk = func(folder string) {
			code, names := f.get("/" + version + "/meta-data/" + folder)
			require.Equal(t, http.StatusOK, code, folder)
			for _, name := range strings.Split(names, "\n") {
				if strings.HasSuffix(name, "/") {
					walk(folder + name)
					continue
				}
				code, found[folder+name] = f.get("/" + version + "/meta-data/" + folder + name)
				require.Equal(t, http.StatusOK, code, folder+name)
			}
		}
		walk("")
		assert.Equal(t, map[string]string{
			"instance-id":                 "knd-1",
			"placement/availability-zone": "us-west-2a",
			"tags/instance/nstance:group": "workers",
			"spot/instance-action":        `{"action":"terminate","time":"2020-09-13T12:26:40Z"}`,
			"spot/termination-time":       "2020-09-13T12:26:40Z",
		}, found)
	}
	for _, path := range []string{"/latest/meta-data/no-such", "/latest/meta-data/placement/no-such", "/1.0/meta-data/", "/latest/user-data/x", "/latest/meta-data/instance"} {
		code, _ := f.get(path)
		assert.Equal(t, http.StatusNotFound, code, path)
	}
	code, body := f.get("/latest/user-data")
	assert.Equal(t, http.StatusOK, code)
	assert.Equal(t, "#!/bin/sh\n", body)
	f.set(func() { f.userdata = nil })
	code, _ = f.get("/latest/user-data")
	assert.Equal(t, http.StatusNotFound, code)
}

// TestTheAgentReadsNotices before and after a notice.
func TestTheAgentReadsNotices(t *testing.T) {
	f := newFixture(t)
	source := notice.New("aws", f.url)
	read, err := source.Poll(t.Context())
	require.NoError(t, err)
	assert.Nil(t, read)
	at := time.Now().Add(2 * time.Minute).Truncate(time.Second)
	f.set(func() { f.notice = &Notice{Action: "stop", Time: at} })
	read, err = source.Poll(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "stop", read.Action)
	assert.True(t, at.Equal(read.Deadline), "%s", read.Deadline)
	// A notice to stop has no termination time.
	code, _ := f.get("/latest/meta-data/spot/termination-time")
	assert.Equal(t, http.StatusNotFound, code)
}
