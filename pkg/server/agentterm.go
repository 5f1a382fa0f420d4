// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"crypto/ed25519"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/agenthealth"
	"nstance.dev/operator/pkg/server/agents"
	"nstance.dev/operator/pkg/server/grpcapi"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// newHealth returns what follows the agents during the term.
func (t *term) newHealth() *agenthealth.Tracker {
	return agenthealth.NewTracker(agenthealth.Options{
		Interval: func() time.Duration { return t.groups.Config().Shard.HealthCheckInterval },
		Changed:  t.changedOne,
		Check: func(key instance.GroupKey, id string) {
			if refresher, ok := t.provider.(provider.Refresher); ok {
				refresher.Refresh(id)
			}
			t.changed(key)
		},
		Failed: t.failures.ReportShard,
	})
}

// serveAgents serves the agents, if the server does, until closeGate is called. running
// waits for what it started, which ends with ctx.
func (t *term) serveAgents(ctx context.Context, running *sync.WaitGroup) (closeGate func()) {
	if t.shared.agentGate == nil {
		return func() {}
	}
	running.Go(func() { t.health.Run(ctx, t.instances) })
	return t.shared.agentGate.Open(&grpcapi.AgentService{
		Registrar: &agents.Registrar{
			Authority: t.shared.keys.Authority,
			NonceKey:  t.shared.keys.Nonce.Public().(ed25519.PublicKey),
			Instances: t.instances,
			Groups:    t.groups,
			Registered: func(i instance.Instance) {
				t.health.Registered(&i.Record)
				t.changed(i.Key())
			},
		},
		Health: t.health,
	})
}
