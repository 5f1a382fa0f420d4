// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"nstance.dev/operator/pkg/plugin/objects"
)

const (
	// readInterval is the time between two reads while the page is open.
	readInterval = 3 * time.Second
	// readHeaderTimeout keeps clients that send nothing from piling up.
	readHeaderTimeout = 10 * time.Second
)

// loopback is the only address that the page is served at, because the page shows what the
// user may read and has no login.
const loopback = "127.0.0.1"

// Listen returns a listener on the loopback address. Port 0 is any free port.
func Listen(ctx context.Context, port uint16) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", net.JoinHostPort(loopback, strconv.Itoa(int(port))))
	if err != nil {
		return nil, fmt.Errorf("listen on --port %d: %w", port, err)
	}
	return listener, nil
}

// URL returns the address of the page.
func URL(listener net.Listener) string { return "http://" + listener.Addr().String() + "/" }

// Serve serves the page until ctx is done. read reads the objects; source names the
// cluster.
func Serve(ctx context.Context, listener net.Listener, source string, read func(context.Context) (*objects.Snapshot, error)) error {
	return serve(ctx, listener, newCollector(read, source, readInterval))
}

func serve(ctx context.Context, listener net.Listener, c *collector) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { c.run(ctx) })
	server := &http.Server{
		Handler: newHandler(c, hosts(listener)), ReadHeaderTimeout: readHeaderTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	// A viewer stays connected, so waiting for the end of its request would not end.
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// hosts returns the values of the header Host that requests of this machine have.
func hosts(listener net.Listener) []string {
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	allowed := []string{net.JoinHostPort(loopback, port), net.JoinHostPort("localhost", port)}
	if port == "80" {
		// Browsers leave out the default port.
		allowed = append(allowed, loopback, "localhost")
	}
	return allowed
}
