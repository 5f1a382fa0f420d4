// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/pkg/server/provider/docker"
)

const (
	apiServerPort = "6443"
	dialTimeout   = time.Second
)

// balancer is the load balancer of the API server: it forwards connections to the machines of the control
// plane. A rule of the firewall would not do: a machine of the control plane itself could not connect to
// its own address through the bridge.
type balancer struct {
	docker   *dockerhost.Host
	shards   []string
	listener net.Listener
	conns    sync.WaitGroup
	stop     context.CancelFunc
}

func startBalancer(ctx context.Context, host *dockerhost.Host, shards []string) (*balancer, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host.Bridge, "0"))
	if err != nil {
		return nil, fmt.Errorf("start the load balancer of the API server: %w", err)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &balancer{docker: host, shards: shards, listener: listener, stop: stop}
	b.conns.Go(func() { b.serve(serving) })
	return b, nil
}

// address is where the API server is reached, host:port.
func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) close() error {
	b.stop()
	err := b.listener.Close()
	b.conns.Wait()
	return err
}

func (b *balancer) serve(ctx context.Context) {
	for {
		accepted, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.conns.Go(func() { b.forward(ctx, accepted) })
	}
}

// forward connects a client with the first machine that accepts a connection: a machine that boots does
// not.
func (b *balancer) forward(ctx context.Context, accepted net.Conn) {
	defer accepted.Close()
	addresses, err := b.machines(ctx)
	if err != nil {
		return
	}
	for _, address := range addresses {
		server, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(address, apiServerPort))
		if err != nil {
			continue
		}
		defer server.Close()
		defer context.AfterFunc(ctx, func() { _, _ = accepted.Close(), server.Close() })()
		ended := make(chan struct{}, 2)
		for _, ends := range [][2]net.Conn{{accepted, server}, {server, accepted}} {
			go func() {
				_, _ = io.Copy(ends[0], ends[1])
				ended <- struct{}{}
			}()
		}
		<-ended
		return
	}
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
	if len(addresses) == 0 {
		return nil, errors.New("there is no machine of the control plane")
	}
	return addresses, nil
}
