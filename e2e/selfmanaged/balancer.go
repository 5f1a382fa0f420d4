// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/pkg/server/provider/docker"
)

const (
	apiServerPort = "6443"
	dialTimeout   = time.Second
	// checkInterval is how often each API server is asked for its health, and failuresToRemove how many
	// checks fail before its machine gets no connection and loses those that it has.
	checkInterval    = time.Second
	checkTimeout     = 3 * time.Second
	failuresToRemove = 2
)

// balancer is the load balancer of the API server: it forwards connections to the machines of the control
// plane. A rule of the firewall would not do: a machine of the control plane itself could not connect to
// its own address through the bridge.
type balancer struct {
	docker   *dockerhost.Host
	shards   []string
	listener net.Listener
	health   *http.Client
	work     sync.WaitGroup
	stop     context.CancelFunc

	mu sync.Mutex
	// backends are the machines, the oldest first.
	backends []backend
	next     int
}

// backend is a machine of the control plane.
type backend struct {
	address  string
	ready    bool
	failures int
	// removed is closed when the machine gets no more connections and loses those that it has.
	removed chan struct{}
}

func startBalancer(ctx context.Context, host *dockerhost.Host, ca *authority, shards []string) (*balancer, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host.Bridge, "0"))
	if err != nil {
		return nil, fmt.Errorf("start the load balancer of the API server: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.certificate)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &balancer{
		docker: host, shards: shards, listener: listener, stop: stop,
		// A connection for each check: an API server that accepts no new connection is of no use.
		health: &http.Client{Timeout: checkTimeout, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "kubernetes"}, DisableKeepAlives: true,
		}},
	}
	b.work.Go(func() { b.serve(serving) })
	b.work.Go(func() { b.checkRegularly(serving) })
	return b, nil
}

// address is where the API server is reached, host:port.
func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) close() error {
	b.stop()
	err := b.listener.Close()
	b.work.Wait()
	return err
}

func (b *balancer) serve(ctx context.Context) {
	for {
		accepted, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.work.Go(func() { b.forward(ctx, accepted) })
	}
}

// forward connects a client with the first machine that accepts a connection.
func (b *balancer) forward(ctx context.Context, accepted net.Conn) {
	defer accepted.Close()
	for _, backend := range b.candidates() {
		server, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(backend.address, apiServerPort))
		if err != nil {
			continue
		}
		defer server.Close()
		ended := make(chan struct{}, 2)
		for _, ends := range [][2]net.Conn{{accepted, server}, {server, accepted}} {
			go func() {
				_, _ = io.Copy(ends[0], ends[1])
				ended <- struct{}{}
			}()
		}
		select {
		case <-ended:
		case <-backend.removed:
		case <-ctx.Done():
		}
		return
	}
}

// candidates returns the machines whose API servers are ready, each time another one first. If none is, it
// returns all: an API server that initializes the cluster is not ready yet.
func (b *balancer) candidates() []backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	ready := slices.DeleteFunc(slices.Clone(b.backends), func(b backend) bool { return !b.ready })
	if len(ready) == 0 {
		return slices.Clone(b.backends)
	}
	b.next++
	first := b.next % len(ready)
	return slices.Concat(ready[first:], ready[:first])
}

func (b *balancer) checkRegularly(ctx context.Context) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		// A list that fails changes nothing.
		if addresses, err := b.machines(ctx); err == nil {
			b.check(ctx, addresses)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// check asks each machine for its health. It removes machines that are not there any more, and machines that
// fail while another one is ready.
func (b *balancer) check(ctx context.Context, addresses []string) {
	healthy := make([]bool, len(addresses))
	var checks sync.WaitGroup
	for i, address := range addresses {
		checks.Go(func() { healthy[i] = b.healthy(ctx, address) })
	}
	checks.Wait()

	b.mu.Lock()
	defer b.mu.Unlock()
	known := map[string]backend{}
	for _, backend := range b.backends {
		if !slices.Contains(addresses, backend.address) {
			close(backend.removed)
			continue
		}
		known[backend.address] = backend
	}
	b.backends = nil
	for i, address := range addresses {
		machine, found := known[address]
		if !found {
			machine = backend{address: address, removed: make(chan struct{})}
		}
		machine.failures++
		if healthy[i] {
			machine.ready, machine.failures = true, 0
		}
		// A slow API server is better than none.
		if machine.ready && machine.failures >= failuresToRemove && slices.Contains(healthy, true) {
			close(machine.removed)
			machine.ready, machine.removed = false, make(chan struct{})
		}
		b.backends = append(b.backends, machine)
	}
}

// healthy reports whether the API server of a machine is ready.
func (b *balancer) healthy(ctx context.Context, address string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(address, apiServerPort)+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := b.health.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// machines returns the addresses of the machines of the control plane, the oldest first: Docker lists
// the newest first, which may not serve yet.
func (b *balancer) machines(ctx context.Context) ([]string, error) {
	var addresses []string
	for _, shard := range b.shards {
		filters := client.Filters{}.Add("label", docker.LabelShard+"="+shard).Add("label", docker.LabelGroup+"="+ControlPlaneGroup)
		list, err := b.docker.Client.ContainerList(ctx, client.ContainerListOptions{Filters: filters})
		if err != nil {
			return nil, fmt.Errorf("list the machines of the control plane: %w", err)
		}
		for _, machine := range list.Items {
			if network := machine.NetworkSettings.Networks["bridge"]; network != nil && network.IPAddress.IsValid() {
				addresses = append([]string{network.IPAddress.String()}, addresses...)
			}
		}
	}
	return addresses, nil
}
