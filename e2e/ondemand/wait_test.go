// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// eventually waits until check succeeds, and fails the test with check's last
// error when it does not within the given time.
func eventually(t testing.TB, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	eventuallyEvery(t, 100*time.Millisecond, within, what, check)
}

// eventuallyEvery is eventually for a check that costs more, or has to be made
// more often.
func eventuallyEvery(t testing.TB, interval, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	last := errors.New("never checked")
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), interval, within, true,
		func(ctx context.Context) (bool, error) {
			err := check(ctx)
			// What was in the way before the time was over tells more.
			if err == nil || ctx.Err() == nil {
				last = err
			}
			return err == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, last)
	}
}

// requests are the operator's requests since from, other than for its lease.
func requests(t testing.TB, from controlplane.Position, match func(controlplane.Request) bool) []controlplane.Request {
	t.Helper()
	found, err := env.cp.AuditLog().Requests(from, func(r controlplane.Request) bool {
		return r.User == nstance.OperatorUser && r.Resource != "leases" && match(r)
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// writes are the operator's requests since from that could change something.
func writes(t testing.TB, from controlplane.Position) []controlplane.Write {
	t.Helper()
	found, err := env.cp.AuditLog().Writes(from, func(w controlplane.Write) bool {
		return w.User == nstance.OperatorUser && w.Resource != "leases"
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func auditEnd(t testing.TB) controlplane.Position {
	t.Helper()
	end, err := env.cp.AuditLog().End()
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// watchOperator fails the test at its end for what the operator must never do:
// ask for what the shipped roles do not grant, and touch Pods or Nodes. Nothing
// drains here but Cluster API, which does it by contract.
func watchOperator(t *testing.T) {
	t.Helper()
	from := auditEnd(t)
	t.Cleanup(func() {
		refused := requests(t, from, func(r controlplane.Request) bool { return r.Code == http.StatusForbidden })
		if len(refused) > 0 {
			t.Errorf("the operator was refused %d requests:%s", len(refused), describe(refused))
		}
		for _, w := range writes(t, from) {
			if w.Resource == "pods" || w.Resource == "nodes" {
				t.Errorf("the operator wrote:%s", describe([]controlplane.Write{w}))
			}
		}
	})
}

// describe lists requests for a failure message, the first of them.
func describe(requests []controlplane.Request) string {
	const most = 20
	var lines strings.Builder
	for i, r := range requests {
		if i == most {
			fmt.Fprintf(&lines, "\n  and %d more", len(requests)-most)
			break
		}
		fmt.Fprintf(&lines, "\n  %s %s %s/%s %s/%s: %d", r.Time.Format(time.TimeOnly), r.Verb, r.Resource, r.Subresource, r.Namespace, r.Name, r.Code)
	}
	return lines.String()
}
