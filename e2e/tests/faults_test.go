// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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

	{"the lease cannot be renewed", func(t *testing.T, o *faultyOperator) {
		defer o.proxy.Heal()
		o.proxy.Inject(faultproxy.Rule{Resource: "leases", Code: http.StatusInternalServerError})
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
		untilAway(t, v1beta1.ReasonUnknownShard)
	}},
	{"the shards' ConfigMap is emptied", func(t *testing.T, _ *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		editShards(t, func(data map[string]string) { clear(data) })
		untilAway(t, v1beta1.ReasonUnknownShard)
	}},
	{"a shard leaves the configuration", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-shards")()
		editShards(t, func(data map[string]string) { delete(data, shardIDs[1]) })
		untilAway(t, v1beta1.ReasonUnknownShard)
		o.restart(t)
		o.untilWorking(t)
		untilAway(t, v1beta1.ReasonUnknownShard)
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
		untilAway(t, v1beta1.ReasonUnknownShard)
	}},

	{"the CA is missing at the start", func(t *testing.T, o *faultyOperator) {
		defer saveConfigMap(t, "nstance-cluster-ca")()
		deleteConfigMap(t, "nstance-cluster-ca")
		o.restart(t)
		untilAway(t, v1beta1.ReasonShardUnreachable)
	}},
	{"the certificate is missing at the start", func(t *testing.T, o *faultyOperator) {
		defer saveSecret(t, "nstance-operator-cert")()
		if err := env.kube.CoreV1().Secrets(nstance.Namespace).Delete(t.Context(), "nstance-operator-cert", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		o.restart(t)
		untilAway(t, v1beta1.ReasonShardUnreachable)
	}},

	{"a shard is down at the start", func(t *testing.T, o *faultyOperator) {
		shard := shardComponent(shardIDs[2])
		if err := shard.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer mustStart(t, shard)
		untilAway(t, v1beta1.ReasonShardUnreachable)
		o.restart(t)
		o.untilWorking(t)
		untilAway(t, v1beta1.ReasonShardUnreachable)
	}},
	{"a shard hangs at the start", func(t *testing.T, o *faultyOperator) {
		defer freeze(t, shardComponent(shardIDs[0]).Name)()
		o.restart(t)
		untilAway(t, v1beta1.ReasonShardUnreachable)
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
		untilAway(t, v1beta1.ReasonShardUnreachable)
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

// untilAway waits until the pool says why not all of its shards are reachable.
func untilAway(t *testing.T, reason string) {
	t.Helper()
	eventually(t, 2*time.Minute, "the pool says "+reason, func(ctx context.Context) error {
		pool, err := getPool(ctx, faultyPool)
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionShardsReachable)
		if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != reason {
			return fmt.Errorf("condition ShardsReachable is %+v", condition)
		}
		return nil
	})
}
