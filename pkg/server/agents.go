// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents"
	"nstance.dev/operator/pkg/server/internal/agents/agentfiles"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newHealth returns the tracker that follows the agents during the term.
func (t *term) newHealth() *agenthealth.Tracker {
	return agenthealth.NewTracker(agenthealth.Options{
		Interval: func() time.Duration { return t.groups.Config().Shard.HealthCheckInterval },
		Changed:  t.instanceChanged,
		Check: func(key instance.GroupKey, id string) {
			t.refresh(id)
			t.instanceChanged(key)
		},
		Failed: t.failures.ReportShard,
	})
}

// refresh makes the provider look at an instance soon, if it can.
func (t *term) refresh(id string) {
	if refresher, ok := t.provider.(provider.Refresher); ok {
		refresher.Refresh(id)
	}
}

// newFiles returns the pusher that makes the files of instances and sends them during the
// term.
func (t *term) newFiles(specs *provision.Provisioner) *agentfiles.Pusher {
	// A machine must not get the name of a server.
	reserved := slices.DeleteFunc(hosts(t.shared.advertise), isLoopback)
	return agentfiles.New(agentfiles.Options{
		Groups:    t.groups,
		Instances: t.instances,
		Renderer: &agentfiles.Renderer{
			Config: t.groups.Config,
			Facts:  specs.FileFacts,
			Secret: t.shared.readSecret,
			Object: t.shared.readObject,

			Digest:        t.shared.keys.Digest,
			HasClusterKey: t.shared.keys.In,
			Sign: func(w pki.Workload, key crypto.PublicKey) ([]byte, error) {
				certificate, err := t.shared.keys.Authority.SignWorkload(w, key, reserved)
				if err != nil {
					return nil, err
				}
				return pki.EncodeCertificate(certificate), nil
			},
			Issue: t.newIssue(),
		},
		LastReport: func(id string) *nstancev1.HealthReportRequest {
			report, _ := t.health.LastReport(id)
			return report
		},
		Failed: t.failures.ReportInstance,
	})
}

// newIssue returns the function that writes certificates of files to the audit log. An agent that
// makes the server send its files again and again waits.
func (t *term) newIssue() func(context.Context, *instance.Record, [][]byte) error {
	limits := &auditlog.Limits{}
	return func(ctx context.Context, record *instance.Record, certificates [][]byte) error {
		if err := limits.Check(record.ID); err != nil {
			return err
		}
		entry := auditlog.Entry{Action: audit.IssueCertificate, Tenant: record.Tenant, Instance: record.ID, Reason: "file"}
		var serials []string
		for _, certificatePEM := range certificates {
			certificate, err := pki.ParseCertificate(certificatePEM)
			if err != nil {
				return fmt.Errorf("read a certificate for the audit log: %w", err)
			}
			serials = append(serials, certificate.SerialNumber.Text(16))
			if certificate.NotAfter.After(entry.ExpiresAt) {
				entry.ExpiresAt = certificate.NotAfter
			}
		}
		entry.Name = strings.Join(serials, ", ")
		return t.auditLog().Write(ctx, entry)
	}
}

// auditLog returns the audit log of the shard, which only the leader writes.
func (t *term) auditLog() auditlog.Log {
	return auditlog.Log{Store: t.storage, Scope: t.shared.shard}
}

// serveAgents serves the agents, if the server does, until closeGate is called. running waits
// for the goroutines that it started, which end with ctx.
func (t *term) serveAgents(ctx context.Context, running *sync.WaitGroup) (closeGate func()) {
	if t.shared.agentGate == nil {
		return func() {}
	}
	running.Go(func() { t.health.Run(ctx, t.instances) })
	running.Go(func() { t.files.Run(ctx) })
	t.shared.registry.MustRegister(t.health)
	closeService := t.shared.agentGate.Open(&grpcapi.AgentService{
		Registrar: &agents.Registrar{
			Authority: t.shared.keys.Authority,
			Nonces: &registration.NonceVerifier{
				Key: t.shared.keys.Nonce.Public().(ed25519.PublicKey), Authority: t.shared.keys.Authority, Store: t.storage,
			},
			Instances: t.instances,
			Groups:    t.groups,
			AuditLog:  t.auditLog(),
			Revoked: func(ctx context.Context) (*registration.RevokedAgents, error) {
				return registration.ReadRevokedAgents(ctx, t.storage, t.shared.shard)
			},
			Registered: func(i instance.Instance) {
				t.health.Registered(&i.Record)
				t.instanceChanged(i.Key())
			},
			Refused: t.health.Refused,
			Refresh: t.refresh,
			Failed:  t.failures.ReportInstance,
		},
		Health: t.health,
		Files:  t.files,
	})
	return func() {
		closeService()
		t.shared.registry.Unregister(t.health)
	}
}
