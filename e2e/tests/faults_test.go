// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// faultyPool is the pool that nothing may happen to.
const faultyPool = "precious"

// Information that is missing, late or wrong never ends an instance: whatever
// fails, no shard is asked for less than it has. When all is well again the pool
// can be scaled.
func TestFaults(t *testing.T) {
	o := startFaultyOperator(t)
	replicas := int32(9)
	createPool(t, faultyPool, replicas)
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, faultyPool, replicas) })
	watched := newWitness(t, faultyPool)

	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			before := watched.sawNoLoss(t)
			fault.happen(t, o)
			o.ensureRunning(t)
			watched.sawNoLoss(t)

			replicas += 3
			scale(t, faultyPool, replicas)
			eventually(t, 3*time.Minute, "the pool scales", func(ctx context.Context) error { return running(ctx, faultyPool, replicas) })
			if seen := watched.sawNoLoss(t) - before; seen < len(shardIDs) {
				t.Errorf("the witness saw %d calls, the scaling alone is one for each of %d shards", seen, len(shardIDs))
			}
		})
	}
}

// faults happen and heal. Each happens for as long as it takes the operator to
// meet it.
var faults = []struct {
	name   string
	happen func(*testing.T, *faultyOperator)
}{
	{"the API server dies", func(t *testing.T, o *faultyOperator) {
		server := env.cp.Component(controlplane.APIServer)
		if err := server.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer mustStart(t, server)
		o.untilEnded(t)
	}},
	{"the API server hangs", func(t *testing.T, o *faultyOperator) {
		defer freeze(t, controlplane.APIServer)()
		o.untilEnded(t)
	}},

	{"pools cannot be listed at the start", cannotList("nstancemachinepools")},
	{"shard groups cannot be listed at the start", cannotList("nstanceshardgroups")},
	{"MachinePools cannot be listed at the start", cannotList("machinepools")},
	{"Nodes cannot be listed at the start", cannotList("nodes")},
	{"ConfigMaps cannot be listed at the start", cannotList("configmaps")},

	{"every watch breaks and nothing can be listed", func(t *testing.T, o *faultyOperator) {
		defer o.proxy.Heal()
		fault := o.proxy.Inject(faultyRule("", http.StatusInternalServerError))
		if o.proxy.CutWatches("") == 0 {
			t.Error("no watch was open")
		}
		untilMet(t, fault, 20)
	}},

	{"the shards' ConfigMap is deleted", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		from := o.logEnd(t)
		deleteConfigMap(t, "nstance-shards")
		o.untilLogged(t, from, "ConfigMap with the shards is gone")
		o.restart(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonUnknownShard)
	}},
	{"the shards' ConfigMap is emptied", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		editShards(t, func(data map[string]string) { clear(data) })
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonUnknownShard)
	}},
	{"a shard leaves the configuration", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		editShards(t, func(data map[string]string) { delete(data, shardIDs[1]) })
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonUnknownShard)
		o.restart(t)
		o.untilWorking(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonUnknownShard)
	}},
	{"the endpoints are malformed", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		editShards(t, func(data map[string]string) {
			for shard := range data {
				data[shard] = "::"
			}
		})
		eventually(t, time.Minute, "an event tells of it", func(ctx context.Context) error {
			count, err := eventsOn(ctx, "nstance-shards", "InvalidEndpoint")
			if err == nil && count == 0 {
				err = errors.New("no event")
			}
			return err
		})
		o.restart(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonUnknownShard)
	}},

	{"the CA is missing at the start", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-cluster-ca")()
		deleteConfigMap(t, "nstance-cluster-ca")
		o.restart(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonShardUnreachable)
	}},
	{"the certificate is missing at the start", func(t *testing.T, o *faultyOperator) {
		defer saveSecret(t, "nstance-operator-cert")()
		if err := env.kube.CoreV1().Secrets(nstance.Namespace).Delete(t.Context(), "nstance-operator-cert", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		o.restart(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonShardUnreachable)
	}},

	{"a shard is down at the start", func(t *testing.T, o *faultyOperator) {
		shard := shardComponent(shardIDs[2])
		if err := shard.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer mustStart(t, shard)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonShardUnreachable)
		o.restart(t)
		o.untilWorking(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonShardUnreachable)
	}},
	{"a shard hangs at the start", func(t *testing.T, o *faultyOperator) {
		defer freeze(t, shardComponent(shardIDs[0]).Name)()
		o.restart(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonShardUnreachable)
	}},
	{"a shard takes connections and is never read", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		editShards(t, func(data map[string]string) { data[shardIDs[1]] = silent.Addr().String() })
		o.restart(t)
		untilPool(t, v1beta1.ConditionShardsReachable, v1beta1.ReasonShardUnreachable)
	}},

	{"somebody removes the number of replicas", func(t *testing.T, _ *faultyOperator) {
		was, err := env.capi.MachinePools(nstance.Namespace).Get(t.Context(), faultyPool, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		patchMachinePool(t, faultyPool, `{"spec":{"replicas":null}}`)
		eventually(t, time.Minute, "the number is back", func(ctx context.Context) error {
			is, err := env.capi.MachinePools(nstance.Namespace).Get(ctx, faultyPool, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if is.Generation == was.Generation || is.Spec.Replicas == nil || *is.Spec.Replicas != *was.Spec.Replicas {
				return fmt.Errorf("generation %d after %d, replicas %v, want %d", is.Generation, was.Generation, is.Spec.Replicas, *was.Spec.Replicas)
			}
			return nil
		})
	}},
}

// cannotList makes lists of a resource fail in every way while the operator
// starts.
func cannotList(resource string) func(*testing.T, *faultyOperator) {
	return func(t *testing.T, o *faultyOperator) {
		defer o.proxy.Heal()
		forbidden := o.proxy.Inject(faultyRule(resource, http.StatusForbidden))
		o.restart(t)
		untilMet(t, forbidden, 2)
		o.proxy.Heal()
		untilMet(t, o.proxy.Inject(faultyRule(resource, http.StatusInternalServerError)), 2)
		o.proxy.Heal()
		// Nobody gives up a list that hangs, so it is met once.
		untilMet(t, o.proxy.Inject(faultyRule(resource, 0)), 1)
	}
}

// faultyRule keeps a resource from being listed. A watch that begins with all
// objects is a list too.
func faultyRule(resource string, code int) faultproxy.Rule {
	return faultproxy.Rule{Verbs: []string{"list", "watch"}, Resource: resource, Code: code}
}

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

// saveConfigMap returns what puts a ConfigMap back as it is.
func saveConfigMap(t *testing.T, name string) (restore func()) {
	t.Helper()
	client := env.kube.CoreV1().ConfigMaps(nstance.Namespace)
	saved, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Namespace: saved.Namespace, Labels: saved.Labels}
		_, err := client.Update(ctx, saved, metav1.UpdateOptions{})
		if err != nil {
			_, err = client.Create(ctx, saved, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// saveSecret returns what makes a Secret again.
func saveSecret(t *testing.T, name string) (restore func()) {
	t.Helper()
	client := env.kube.CoreV1().Secrets(nstance.Namespace)
	saved, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Namespace: saved.Namespace, Labels: saved.Labels}
		if _, err := client.Create(context.WithoutCancel(t.Context()), saved, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func deleteConfigMap(t *testing.T, name string) {
	t.Helper()
	if err := env.kube.CoreV1().ConfigMaps(nstance.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// editShards changes where the operator finds the shards.
func editShards(t *testing.T, change func(map[string]string)) {
	t.Helper()
	client := env.kube.CoreV1().ConfigMaps(nstance.Namespace)
	shards, err := client.Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(shards.Data)
	if _, err := client.Update(t.Context(), shards, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// untilMet waits until the operator has run into a fault that often.
func untilMet(t *testing.T, fault *faultproxy.Fault, times int) {
	t.Helper()
	eventually(t, 2*time.Minute, "the operator meets the fault", func(context.Context) error {
		if met := fault.Met(); met < times {
			return fmt.Errorf("%d of %d times", met, times)
		}
		return nil
	})
}

// untilPool waits until a condition of the pool is false for a reason.
func untilPool(t *testing.T, kind, reason string) {
	t.Helper()
	eventually(t, 2*time.Minute, fmt.Sprintf("the pool says %s=False, %s", kind, reason), func(ctx context.Context) error {
		pool, err := getPool(ctx, faultyPool)
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(pool.Status.Conditions, kind)
		if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != reason {
			return fmt.Errorf("it says %+v", condition)
		}
		return nil
	})
}

func shardComponent(id string) *controlplane.Component {
	return env.cp.Component(nstance.Shard{ID: id}.Component())
}

// freeze keeps a component from running, and returns what lets it run again.
func freeze(t *testing.T, name string) (thaw func()) {
	t.Helper()
	component := env.cp.Component(name)
	if err := component.Freeze(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := component.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
}

func mustStart(t *testing.T, component *controlplane.Component) {
	t.Helper()
	if err := component.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}
