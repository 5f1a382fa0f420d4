// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/nstance"
)

// point is where in a scale-down the operator is killed: before a request of its
// own that never arrives, or after so many that did.
type point struct {
	before *faultproxy.Rule
	after  int
}

func (p point) String() string {
	if p.before != nil {
		return fmt.Sprintf("before %v %s", p.before.Verbs, p.before.Resource)
	}
	return fmt.Sprintf("after %d requests", p.after)
}

// nothingLeft is what the operator is killed after when its scale-down is over
// before it has made as many requests.
const nothingLeft = "all"

// points are where the operator is killed: at each of its first requests, and
// before each write that a scale-down cannot do without.
func points() []point {
	var all []point
	for after := range 14 {
		all = append(all, point{after: after})
	}
	for _, write := range []faultproxy.Rule{
		{Verbs: []string{"patch"}, Resource: "nstanceshardgroups"},
		{Verbs: []string{"delete"}, Resource: "machines"},
		{Verbs: []string{"patch", "update"}, Resource: "nstancemachines"},
	} {
		all = append(all, point{before: &write}, point{before: &write})
	}
	return all
}

// Wherever the operator is killed on the way, the instance that was chosen goes,
// and only that one.
func TestKilledWhileShrinking(t *testing.T) {
	const name, rest = "killed", 4
	watchOperator(t)
	random := newRandom(t)
	where := points()
	o := startCrashingOperator(t)
	group := createPool(t, name, int32(len(where)+rest))
	left := untilRunning(t, name, len(where)+rest)
	from := auditEnd(t)
	var victims []string
	reached := map[string]int{}
	for _, i := range random.Perm(len(where)) {
		victim := chooseNodes(t, group, random, 1)[0]
		victims = append(victims, victim.Name)
		begin, held := auditEnd(t), o.hold(where[i])
		if err := group.deleteNodes(t.Context(), victim); err != nil {
			t.Fatal(err)
		}
		reached[o.untilReached(t, where[i], begin, held, victim.Name)]++
		o.crash(t)
		untilMachinesGone(t, victim.Name)
		left = left.without(victim.Name)
		if got := getInstances(t, name); !maps.Equal(got, left) {
			t.Fatalf("killed %s: besides %s, %v are lost and %v are new",
				where[i], victim.Name, left.without(got.ids()...).ids(), got.without(left.ids()...).ids())
		}
	}
	t.Logf("killed after: %v", reached)
	if late := reached[nothingLeft]; late > len(where)/4 {
		t.Errorf("%d of %d times there was nothing left to do when the operator was killed", late, len(where))
	}
	untilRunning(t, name, rest)
	expectInstances(t, name, left)
	expectNodeChanges(t, from, name, 0, victims...)
}

// crashingOperator is an operator that reaches the API server through a proxy, and
// that is the only one that runs.
type crashingOperator struct {
	*controlplane.Component
	proxy *faultproxy.Proxy
}

func startCrashingOperator(t *testing.T) *crashingOperator {
	t.Helper()
	usual := env.Component(env.operator.Component)
	if err := usual.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := usual.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	certificate, err := env.ServingCertificate("proxy")
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(env.AdminConfig(), certificate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	operator, err := env.Nstance.StartOperator(t.Context(), nstance.Operator{
		Component: "operator-that-crashes",
		Server:    proxy.URL,
		// The API server goes on asking at the same place.
		WebhookPort: env.operator.WebhookPort,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := &crashingOperator{env.Component(operator.Component), proxy}
	t.Cleanup(func() {
		if err := o.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return o
}

// hold keeps the request from arriving that the operator is to be killed before.
func (o *crashingOperator) hold(at point) *faultproxy.Fault {
	if at.before == nil {
		return nil
	}
	return o.proxy.Inject(*at.before)
}

// untilReached returns when the operator is where it is to be killed, or when
// there is nothing left for it to do. It says what its last request was.
func (o *crashingOperator) untilReached(t *testing.T, at point, from controlplane.Position, held *faultproxy.Fault, victim string) (last string) {
	t.Helper()
	eventuallyEvery(t, 5*time.Millisecond, patience, "the operator is "+at.String(), func(ctx context.Context) error {
		requests, err := env.AuditLog().Requests(from, func(r controlplane.Request) bool {
			return byOperator(r) && r.Verb != "watch" && r.Resource != "leases"
		})
		if err != nil {
			return err
		}
		last = "the request of the autoscaler"
		if held == nil {
			requests = requests[:min(len(requests), at.after)]
		}
		if len(requests) > 0 {
			r := requests[len(requests)-1]
			last = r.Verb + " " + r.Resource
			if r.Subresource != "" {
				last += "/" + r.Subresource
			}
		}
		if held != nil && held.Met() > 0 {
			last = at.String()
			return nil
		}
		if held == nil && len(requests) == at.after {
			return nil
		}
		if machineGone(ctx, victim) == nil {
			last = nothingLeft
			return nil
		}
		return errors.New("its last request was " + last)
	})
	if held != nil && held.Met() == 0 {
		t.Errorf("the operator needed no request %s", at)
	}
	return last
}

// crash kills the operator and starts another one. How long that would wait for
// the lease of one that was killed is not what is shown here.
func (o *crashingOperator) crash(t *testing.T) {
	t.Helper()
	if err := o.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.proxy.Heal()
	_, err := env.kube.CoordinationV1().Leases(nstance.Namespace).Patch(t.Context(), "nstance-operator-leader-election",
		mergePatch, []byte(`{"spec":{"holderIdentity":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}
