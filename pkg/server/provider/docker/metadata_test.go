// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/docker"
)

// withMetadata is a shard whose provider serves metadata.
type withMetadata struct {
	*fixture
	// net are the first three bytes of the addresses of the containers.
	net string
	// stop stops the provider, as a server that stops does.
	stop func()
}

// newWithMetadata returns a shard with metadata. The network has its gateway on this
// machine, which is where the provider listens.
func newWithMetadata(t *testing.T) *withMetadata {
	f := &withMetadata{net: fmt.Sprintf("10.215.%d.", rand.IntnRange(0, 256)), stop: func() {}}
	f.fixture = newFixtureWith(t, f.net+"0/24", func(o *docker.Options) {
		// The network exists, and so does its address.
		listener, err := net.Listen("tcp", f.net+"1:0")
		require.NoError(t, err)
		o.MetadataAddress = listener.Addr().String()
		require.NoError(t, listener.Close())
		o.Notices = t.TempDir()
	})
	f.start()
	return f
}

// start starts the provider and returns when it serves.
func (f *withMetadata) start() {
	f.t.Helper()
	f.run()
	f.untilServing()
}

// run starts the provider.
func (f *withMetadata) run() provider.Provider {
	f.t.Helper()
	p, err := f.options.NewProvider(f.shard, nil)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		assert.NoError(f.t, p.Run(ctx, func(instance.GroupKey) {}, func(instance.GroupKey, string, error) {}))
	})
	f.stop = func() {
		cancel()
		running.Wait()
	}
	f.t.Cleanup(f.stop)
	return p
}

func (f *withMetadata) untilServing() {
	f.t.Helper()
	err := wait.PollUntilContextTimeout(f.t.Context(), 5*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.options.MetadataAddress)
		if err == nil {
			err = conn.Close()
		}
		return err == nil, nil
	})
	require.NoError(f.t, err)
}

// launch starts the container of an instance, with an address if it is not empty.
func (f *withMetadata) launch(address string) string {
	f.t.Helper()
	r := f.request(map[string]any{"privileges": "unprivileged", "labels": map[string]any{"example.com/team": "a"}})
	r.Userdata = []byte("userdata of " + r.ID)
	_, err := f.Launch(f.t.Context(), r)
	require.NoError(f.t, err)
	if address != "" {
		f.move(r.ID, address)
	}
	return r.ID
}

// move gives a container another address.
func (f *withMetadata) move(id, address string) {
	f.t.Helper()
	_, err := f.daemon.Client.NetworkDisconnect(f.t.Context(), f.network, client.NetworkDisconnectOptions{Container: id})
	require.NoError(f.t, err)
	_, err = f.daemon.Client.NetworkConnect(f.t.Context(), f.network, client.NetworkConnectOptions{
		Container:      id,
		EndpointConfig: &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: netip.MustParseAddr(address)}},
	})
	require.NoError(f.t, err)
}

// do returns status and body of a response to a process in a container.
func (f *withMetadata) do(id, method, path string, headers ...string) (int, string) {
	f.t.Helper()
	printed, err := f.daemon.Exec(f.t, id, append([]string{"/pause", "request", method, "http://" + f.options.MetadataAddress + path}, headers...)...)
	require.NoError(f.t, err)
	code, body, _ := strings.Cut(printed, "\n")
	status, err := strconv.Atoi(code)
	require.NoError(f.t, err, printed)
	return status, body
}

const (
	lifetimeHeader = "X-aws-ec2-metadata-token-ttl-seconds=60"
	tokenHeader    = "X-aws-ec2-metadata-token="
)

func (f *withMetadata) token(id string) string {
	f.t.Helper()
	code, token := f.do(id, http.MethodPut, "/latest/api/token", lifetimeHeader)
	require.Equal(f.t, http.StatusOK, code)
	return token
}

func (f *withMetadata) get(id, path string) (int, string) {
	f.t.Helper()
	return f.do(id, http.MethodGet, path, tokenHeader+f.token(id))
}

// TestAContainerGetsItsOwnMetadata: two containers of the shard.
func TestAContainerGetsItsOwnMetadata(t *testing.T) {
	f := newWithMetadata(t)
	ids := []string{f.launch(""), f.launch("")}
	for _, id := range ids {
		assert.Contains(t, f.inspect(id).Config.Env, "NSTANCE_METADATA_ADDR="+f.options.MetadataAddress)
		for path, want := range map[string]string{
			"/latest/user-data":                                   "userdata of " + id,
			"/latest/meta-data/instance-id":                       id,
			"/latest/meta-data/instance-type":                     "tiny",
			"/latest/meta-data/local-ipv4":                        f.find(id).Addresses[0].String(),
			"/latest/meta-data/placement/region":                  "region",
			"/latest/meta-data/placement/availability-zone":       "zone-a",
			"/latest/meta-data/tags/instance/nstance:instance-id": id,
			"/latest/meta-data/tags/instance/nstance:group":       "workers",
			"/latest/meta-data/tags/instance/example.com:team":    "a",
		} {
			code, content := f.get(id, path)
			assert.Equal(t, http.StatusOK, code, path)
			assert.Equal(t, want, content, path)
		}
	}
	code, body := f.do(ids[0], http.MethodGet, "/latest/user-data", tokenHeader+f.token(ids[1]))
	assert.Equal(t, http.StatusUnauthorized, code, "the token of another instance")
	assert.Empty(t, body)
}

// TestOthersGetNothing: the host, a container that was not created by the shard, and a
// container of another shard.
func TestOthersGetNothing(t *testing.T) {
	f := newWithMetadata(t)
	id := f.launch("")
	token := f.token(id)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.options.MetadataAddress+"/latest/user-data", nil)
	require.NoError(t, err)
	request.Header.Set("X-aws-ec2-metadata-token", token)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusForbidden, response.StatusCode)
	assert.Empty(t, body)

	ours := f.inspect(id).Config.Labels
	other := map[string]string{docker.LabelShard: "b"}
	for name, value := range ours {
		if name != docker.LabelShard {
			other[name] = value
		}
	}
	for name, labels := range map[string]map[string]string{"foreign": nil, "other shard": other} {
		t.Run(name, func(t *testing.T) {
			foreign := "nstance-test-" + rand.String(8)
			_, err := f.daemon.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
				Name: foreign, Config: &container.Config{Image: f.options.Image, Labels: labels},
				HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(f.network)},
			})
			require.NoError(t, err)
			t.Cleanup(func() { f.daemon.Remove(t, foreign) })
			_, err = f.daemon.Client.ContainerStart(t.Context(), foreign, client.ContainerStartOptions{})
			require.NoError(t, err)
			for _, path := range []string{"/", "/latest/user-data"} {
				code, body := f.do(foreign, http.MethodGet, path, tokenHeader+token)
				assert.Equal(t, http.StatusForbidden, code)
				assert.Empty(t, body)
			}
			code, body := f.do(foreign, http.MethodPut, "/latest/api/token", lifetimeHeader)
			assert.Equal(t, http.StatusForbidden, code)
			assert.Empty(t, body)
		})
	}
}

// TestOneAddressCannotUseAllConnections: further connections of this machine are closed, and
// a container is served.
func TestOneAddressCannotUseAllConnections(t *testing.T) {
	f := newWithMetadata(t)
	id := f.launch("")
	for range 16 {
		conn, err := net.Dial("tcp", f.options.MetadataAddress)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
	}
	further, err := net.Dial("tcp", f.options.MetadataAddress)
	require.NoError(t, err)
	_, err = further.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, content := f.get(id, "/latest/meta-data/instance-id")
	assert.Equal(t, id, content)
}

// TestAnAddressThatPassesOn: a container gets the address of one before, which the service
// has just seen. It gets its own metadata, and never the other's.
func TestAnAddressThatPassesOn(t *testing.T) {
	f := newWithMetadata(t)
	address := f.net + "77"
	first := f.launch(address)
	code, content := f.get(first, "/latest/user-data")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "userdata of "+first, content)
	token := f.token(first)

	// The first keeps running, at another address.
	f.move(first, f.net+"78")
	second := f.launch(address)
	code, _ = f.do(second, http.MethodGet, "/latest/user-data", tokenHeader+token)
	assert.Equal(t, http.StatusUnauthorized, code)
	_, content = f.get(second, "/latest/user-data")
	assert.Equal(t, "userdata of "+second, content)
	_, content = f.get(first, "/latest/user-data")
	assert.Equal(t, "userdata of "+first, content)

	f.daemon.Remove(t, second)
	third := f.launch(address)
	_, content = f.get(third, "/latest/user-data")
	assert.Equal(t, "userdata of "+third, content)
}

// TestNoticesSurviveARestart: a notice is a file of the name of the instance.
func TestNoticesSurviveARestart(t *testing.T) {
	f := newWithMetadata(t)
	id, other := f.launch(""), f.launch("")
	const path = "/latest/meta-data/spot/instance-action"
	code, _ := f.get(id, path)
	require.Equal(t, http.StatusNotFound, code)

	file := filepath.Join(f.options.Notices, id)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chtimes(file, time.Time{}, time.Unix(1_600_000_000, 0)))
	const notice = `{"action":"terminate","time":"2020-09-13T12:28:40Z"}`
	_, content := f.get(id, path)
	assert.Equal(t, notice, content, "an empty file: two minutes later")
	code, _ = f.get(other, path)
	assert.Equal(t, http.StatusNotFound, code)

	token := f.token(id)
	f.stop()
	f.start()
	code, _ = f.do(id, http.MethodGet, path, tokenHeader+token)
	assert.Equal(t, http.StatusUnauthorized, code, "a token of the server before")
	_, content = f.get(id, path)
	assert.Equal(t, notice, content)

	require.NoError(t, os.WriteFile(file, []byte(`{"action":"stop","time":"2031-01-02T03:04:05Z"}`), 0o600))
	_, content = f.get(id, path)
	assert.Equal(t, `{"action":"stop","time":"2031-01-02T03:04:05Z"}`, content)
	for _, wrong := range []string{`{"action":"explode"}`, "{"} {
		require.NoError(t, os.WriteFile(file, []byte(wrong), 0o600))
		code, content = f.get(id, path)
		assert.Equal(t, http.StatusInternalServerError, code)
		assert.Empty(t, content)
	}
}

// TestAnAddressInUse: another process has the address of the service. The provider runs,
// and serves once the address is free.
func TestAnAddressInUse(t *testing.T) {
	f := newWithMetadata(t)
	id := f.launch("")
	f.stop()
	listener, err := net.Listen("tcp", f.options.MetadataAddress)
	require.NoError(t, err)
	p := f.run()
	<-p.Synced()
	_, found := p.Get(id)
	assert.True(t, found)
	require.NoError(t, listener.Close())
	f.untilServing()
	_, content := f.get(id, "/latest/meta-data/instance-id")
	assert.Equal(t, id, content)
}
