// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// running is a dashboard that reads a snapshot each time the test passes one on.
type running struct {
	listener  net.Listener
	snapshots chan *objects.Snapshot
	reads     atomic.Int32
	stop      context.CancelFunc
	ended     chan error
}

func start(t *testing.T) *running {
	t.Helper()
	r := &running{snapshots: make(chan *objects.Snapshot), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	r.stop = stop
	var err error
	r.listener, err = Listen(ctx, 0)
	require.NoError(t, err)
	c := newCollector(func(ctx context.Context) (*objects.Snapshot, error) {
		select {
		case snapshot := <-r.snapshots:
			r.reads.Add(1)
			return snapshot, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, "dev", time.Millisecond)
	go func() { r.ended <- serve(ctx, r.listener, c) }()
	return r
}

// viewer is a browser that receives updates.
type viewer struct{ *bufio.Reader }

func (r *running) view(t *testing.T) viewer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, URL(r.listener)+"updates", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	return viewer{bufio.NewReader(response.Body)}
}

// until returns when the viewer has received a text.
func (v viewer) until(t *testing.T, text string) {
	t.Helper()
	for {
		line, err := v.ReadString('\n')
		require.NoError(t, err)
		if strings.Contains(line, text) {
			return
		}
	}
}

// An update is read once and sent to every viewer.
func TestEveryViewerReceivesAnUpdate(t *testing.T) {
	r := start(t)
	first, second := r.view(t), r.view(t)
	r.snapshots <- plugintest.AtRest()
	changed := plugintest.AtRest()
	changed.Pools.Items[0].Name = "renamed"
	r.snapshots <- changed
	first.until(t, "Pool renamed is Ready.")
	second.until(t, "Pool renamed is Ready.")
	if got := r.reads.Load(); got != 2 {
		t.Errorf("%d reads for 2 viewers, want 2", got)
	}
}

// The end of the command ends the connections of viewers too.
func TestServerEnds(t *testing.T) {
	r := start(t)
	v := r.view(t)
	r.snapshots <- plugintest.AtRest()
	v.until(t, "Pool workers is Ready.")
	r.stop()
	require.NoError(t, <-r.ended)
	if _, err := io.Copy(io.Discard, v); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		var network net.Error
		if !errors.As(err, &network) {
			t.Errorf("the stream ended with %v", err)
		}
	}
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.listener.Addr().String()); err == nil {
		t.Error("the server still listens")
	}
}

// Nothing listens on another address than that of the loopback.
func TestListensOnLoopback(t *testing.T) {
	listener, err := Listen(t.Context(), 0)
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	address := listener.Addr().(*net.TCPAddr)
	if !address.IP.IsLoopback() {
		t.Errorf("listens on %s", address)
	}
	_, err = Listen(t.Context(), uint16(address.Port))
	require.ErrorContains(t, err, "listen on --port ")
}
