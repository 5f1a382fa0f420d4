// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/nstance"
)

// faultyOperator is an operator that reaches the API server through a proxy. It
// is the only one that runs.
type faultyOperator struct {
	nstance.Operator
	proxy     *faultproxy.Proxy
	component *controlplane.Component
}

func startFaultyOperator(t *testing.T) *faultyOperator {
	t.Helper()
	stopOperator(t)
	certificate, err := env.cp.ServingCertificate("proxy")
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(env.cp.AdminConfig(), certificate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	operator, err := env.n.StartOperator(t.Context(), nstance.Operator{
		Component: "operator-of-faults",
		Server:    proxy.URL,
		// The API server goes on asking at the same place.
		WebhookPort: env.operator.WebhookPort,
		// A short lease, so that a lost one is soon noticed.
		Flags: []string{
			"--leader-elect-lease-duration", "6s",
			"--leader-elect-renew-deadline", "4s",
			"--leader-elect-retry-period", "1s",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := &faultyOperator{Operator: operator, proxy: proxy, component: env.cp.Component(operator.Component)}
	// From now on it may start while its caches cannot be complete.
	o.component.Ready = controlplane.Probe{URL: operator.URL() + "/healthz"}
	t.Cleanup(func() {
		if err := o.component.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return o
}

// stopOperator stops the operator of all tests until the test ends.
func stopOperator(t *testing.T) {
	t.Helper()
	usual := env.cp.Component(env.operator.Component)
	if err := usual.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, running := usual.PID(); !running {
			mustStart(t, usual)
		}
	})
}

func (o *faultyOperator) restart(t *testing.T) {
	t.Helper()
	if err := o.component.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustStart(t, o.component)
}

// ensureRunning starts the operator again if it has ended, as its Deployment
// would.
func (o *faultyOperator) ensureRunning(t *testing.T) {
	t.Helper()
	if _, running := o.component.PID(); !running {
		mustStart(t, o.component)
	}
}

// untilEnded waits until the operator has given up: it cannot know any more
// whether it leads.
func (o *faultyOperator) untilEnded(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the operator ends", func(context.Context) error {
		if pid, running := o.component.PID(); running {
			return fmt.Errorf("it runs as process %d", pid)
		}
		return nil
	})
}

// untilWorking waits until the operator leads and its queues are empty again
// after it has looked at every pool.
func (o *faultyOperator) untilWorking(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the operator has looked at the pools", func(ctx context.Context) error {
		added, err := metric(ctx, o.URL(), "workqueue_adds_total", map[string]string{"name": "machinepool"})
		if err != nil {
			return err
		}
		waiting, err := metric(ctx, o.URL(), "workqueue_depth", nil)
		if err == nil && (added == 0 || waiting > 0) {
			err = fmt.Errorf("%v pools were queued, %v keys wait", added, waiting)
		}
		return err
	})
}

func (o *faultyOperator) logEnd(t *testing.T) int {
	t.Helper()
	log, err := os.ReadFile(o.component.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	return len(log)
}

func (o *faultyOperator) untilLogged(t *testing.T, from int, text string) {
	t.Helper()
	eventually(t, time.Minute, "the operator logs: "+text, func(context.Context) error {
		log, err := os.ReadFile(o.component.LogPath())
		if err == nil && !bytes.Contains(log[from:], []byte(text)) {
			err = errors.New("not logged")
		}
		return err
	})
}
