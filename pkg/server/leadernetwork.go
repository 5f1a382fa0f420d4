// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/provider"
)

// assignTimeout is how long a server tries to get the address of the leader. Then it stops
// and releases the lock: another server may succeed.
const assignTimeout = 3 * time.Minute

// leaderNetwork gives this machine the address of the leader while the server leads
// (docs/server.md#leader-network).
type leaderNetwork struct {
	provider.LeaderNetwork
	network provider.Network
	// follow returns a context that lasts as long as the leadership.
	follow func(context.Context) (context.Context, context.CancelFunc)
	// timeout returns the limit of one call.
	timeout func() time.Duration
	// failed is called with the reason why this machine does not have the address yet.
	failed func(error)
	// assigned is true if the last call has succeeded.
	assigned atomic.Bool
}

// newLeaderNetwork returns nil if the configuration has no leader network.
func (p *process) newLeaderNetwork(c *config.Config) (*leaderNetwork, error) {
	if c.Shard.LeaderNetwork == nil {
		return nil, nil
	}
	options, ok := c.Shard.Infra.Options.(provider.LeaderNetworkOptions)
	if !ok {
		return nil, fmt.Errorf("provider %q has no leader network", c.Shard.Infra.Provider)
	}
	network, err := options.NewLeaderNetwork(provider.Shard{
		ClusterID: c.ClusterID, ID: c.Shard.ID, Region: c.Shard.Infra.Region, Zone: c.Shard.Infra.Zone,
	})
	if err != nil {
		return nil, err
	}
	n := &leaderNetwork{
		LeaderNetwork: network,
		network:       *c.Shard.LeaderNetwork,
		follow:        p.shared.elector.Follow,
		timeout:       func() time.Duration { return p.shared.inForce.Load().Shard.RequestTimeout },
		failed:        func(err error) { p.shared.failed.Store(&err) },
	}
	p.shared.registry.MustRegister(n.metric())
	return n, nil
}

// metric returns a metric that is 1 while this machine has the address.
func (n *leaderNetwork) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nstance_server_leader_network_assigned",
		Help: "1 while this machine has the address of the leader, as far as this server knows, otherwise 0.",
	}, func() float64 {
		if n.assigned.Load() {
			return 1
		}
		return 0
	})
}

// lead assigns the address, calls run, and assigns the address again regularly, until run
// returns. Then it releases the address. ctx is the context of the leadership.
func (n *leaderNetwork) lead(ctx context.Context, run func(context.Context) error) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "address", n.network.IP)
	networkCtx := klog.NewContext(ctx, logger)
	defer n.release(networkCtx)
	if err := n.assign(networkCtx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("assign the address of the leader, %s (shard.leader_network): %w", n.network.IP, err)
	}
	logger.Info("This machine has the address of the leader")
	var running sync.WaitGroup
	defer running.Wait()
	networkCtx, stop := context.WithCancel(networkCtx)
	defer stop()
	running.Go(func() { n.keep(networkCtx) })
	return run(ctx)
}

// assign calls Assign until a call succeeds.
func (n *leaderNetwork) assign(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	backoff := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 1 << 30, Cap: 10 * time.Second}
	for {
		err := n.call(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The address of the leader could not be assigned, will retry")
			n.failed(fmt.Errorf("the address of the leader, %s, is not this machine's: %w", n.network.IP, err))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(backoff.Step()):
		}
	}
}

// keep calls Assign regularly: another client may have taken the address.
func (n *leaderNetwork) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(n.AssignInterval()):
		}
		if err := n.call(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, leader.ErrNotLeading) {
			klog.FromContext(ctx).Error(err, "The address of the leader could not be assigned again, will retry")
		}
	}
}

// call calls Assign, if this server leads.
func (n *leaderNetwork) call(ctx context.Context) error {
	ctx, cancelLease := n.follow(ctx)
	defer cancelLease()
	ctx, cancel := context.WithTimeout(ctx, n.timeout())
	defer cancel()
	// A process that was paused may continue here, after its lease has ended.
	if err := deadline.Check(ctx); err != nil {
		return errors.Join(leader.ErrNotLeading, err)
	}
	err := n.Assign(ctx, n.network)
	n.assigned.Store(err == nil)
	return err
}

// release takes the address from this machine. Its context does not follow ctx: the server
// stops or has lost the leadership, so ctx is done.
func (n *leaderNetwork) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.timeout())
	defer cancel()
	n.assigned.Store(false)
	if err := n.Release(ctx, n.network); err != nil {
		klog.FromContext(ctx).Error(err, "The address of the leader could not be released")
		return
	}
	klog.FromContext(ctx).Info("Released the address of the leader")
}
