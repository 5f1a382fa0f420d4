// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"fmt"
	"sync"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/loadbalancers"
	"nstance.dev/operator/pkg/server/provider"
)

// openTargets creates what registers instances with load balancers during the term.
func (t *term) openTargets() error {
	c := t.groups.Config()
	balancers, ok := t.provider.(provider.LoadBalancers)
	if !ok {
		if len(c.LoadBalancers) > 0 {
			return fmt.Errorf("provider %q has no load balancers, although its options have", c.Shard.Infra.Provider)
		}
		return nil
	}
	t.targets = loadbalancers.New(loadbalancers.Options{
		Balancers:   balancers,
		VM:          t.provider.Get,
		Instances:   t.instances,
		Groups:      t.groups,
		Agents:      provider.RunsAgent(c.Shard.Infra.Options),
		CallContext: t.callContext,
		Changed:     func(key instance.GroupKey) { t.reconciler.Enqueue(key) },
		Failed:      t.failures.ReportInstance,
		FailedList:  t.failures.ReportShard,
		Metrics:     t.shared.balancerMetrics,
	})
	return nil
}

// serveTargets registers instances with load balancers until ctx is done. running waits for
// what it started. remove removes the metrics.
func (t *term) serveTargets(ctx context.Context, running *sync.WaitGroup) (remove func()) {
	if t.targets == nil {
		return func() {}
	}
	t.shared.registry.MustRegister(t.targets)
	running.Go(func() { t.targets.Run(ctx) })
	return func() { t.shared.registry.Unregister(t.targets) }
}
