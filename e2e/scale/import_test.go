// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// component is the name under which the operator runs.
const component = "operator"

// timeout is how long all groups may take for anything, on a machine that other suites keep busy.
var timeout = tier.Pick(10*time.Minute, 30*time.Minute)

// Importing a group costs one write for each of its objects, one that hands over the specs of the
// pool and the MachinePool, and at most one for each status but for a few, and no write waits for the
// operator's own rate limit.
func TestImport(t *testing.T) {
	result := mustImport(t)
	t.Logf("imported %d groups in %s with %d writes", groups, result.took.Round(time.Second/10), len(result.writes))

	// The objects are a pool, a MachinePool, which are handed over, and a shard group on each shard.
	limit := 2*2 + len(shardIDs)
	specs, statuses := map[string]int{}, map[string]int{}
	for _, w := range result.writes {
		if w.Subresource == "status" {
			statuses[w.Resource+"/"+w.Name]++
		} else {
			specs[groupOf(w.Name)]++
		}
	}
	if len(specs) != groups {
		t.Errorf("objects of %d groups were written, want %d", len(specs), groups)
	}
	for group, count := range specs {
		if count > limit {
			t.Errorf("group %s cost %d writes of objects, want at most %d", group, count, limit)
		}
	}
	again := 0
	for object, count := range statuses {
		again += count - 1
		if count > 2 {
			t.Errorf("the status of %s was written %d times, want once", object, count)
		}
	}
	// A pool that is synced between the first reports of two of its shard groups has a second status.
	if limit := max(groups/100, 1); again > limit {
		t.Errorf("statuses were written again %d times, want at most %d", again, limit)
	}
	if result.throttled > 0 {
		t.Errorf("requests waited %v s for the operator's own rate limit", result.throttled)
	}
}

// An operator that starts when everything is in sync writes nothing.
func TestRestartWritesNothing(t *testing.T) {
	operator := mustImport(t).operator
	require.NoError(t, env.Component(component).Stop(t.Context()))
	from := env.AuditEnd(t)
	testcluster.Start(t, env.Component(component))
	require.NoError(t, untilSynced(t.Context(), operator))
	if writes := env.Writes(t, from, ofOperator); len(writes) > 0 {
		t.Errorf("%d writes after the restart, want 0:%s", len(writes), testcluster.Describe(writes))
	}
}

// importResult has the writes and the time of an import.
type importResult struct {
	operator installation.Operator
	// from is where the audit log ended when the operator was started.
	from controlplane.Position
	// writes are the writes of pools, MachinePools and shard groups, without conflicts.
	writes []controlplane.Write
	// took is the time from the first of them to the last.
	took time.Duration
	// throttled is how many seconds requests waited in the operator.
	throttled float64
}

// importOnce starts the operator, once for the test and the benchmark, and
// returns when every group is imported and nothing is left to do.
var importOnce = sync.OnceValues(func() (*importResult, error) {
	ctx := context.Background()
	from, err := env.AuditLog().End()
	if err != nil {
		return nil, err
	}
	result := &importResult{from: from}
	result.operator, err = env.Installation.StartOperator(ctx, installation.Operator{
		Component: component,
		// The machine is small and busy, and no other operator could lead.
		Flags: []string{"--leader-elect-lease-duration", "3m", "--leader-elect-renew-deadline", "2m"},
	})
	if err != nil {
		return nil, err
	}
	// A list of a thousand pools costs the API server as much as dozens of writes.
	if err := testcluster.Poll(ctx, 5*time.Second, timeout, "all groups are imported", allImported); err != nil {
		return nil, err
	}
	if err := untilSynced(ctx, result.operator); err != nil {
		return nil, err
	}
	writes, err := env.AuditLog().Writes(from, ofOperator)
	if err != nil {
		return nil, err
	}
	for _, w := range writes {
		// Cluster API writes the same objects, and who comes second reads them again.
		if w.Code == http.StatusConflict {
			continue
		}
		if ofGroups(w) {
			result.writes = append(result.writes, w)
		}
	}
	if len(result.writes) == 0 {
		return nil, errors.New("the operator has written nothing")
	}
	result.took = result.writes[len(result.writes)-1].Time.Sub(result.writes[0].Time)
	result.throttled, err = installation.Metric(ctx, result.operator.URL(), "rest_client_rate_limiter_duration_seconds", nil)
	return result, err
})

func mustImport(t testing.TB) *importResult {
	t.Helper()
	result, err := importOnce()
	require.NoError(t, err)
	return result
}

// allImported succeeds when all groups have a pool that is ready.
func allImported(ctx context.Context) error {
	list, err := env.NstanceMachinePools().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for _, pool := range list.Items {
		if meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) {
			ready++
		}
	}
	if ready != groups {
		return fmt.Errorf("%d of %d pools, %d ready", len(list.Items), groups, ready)
	}
	return nil
}

// untilSynced waits until the operator, since it started, has synced every object,
// and its queues are empty.
func untilSynced(ctx context.Context, operator installation.Operator) error {
	var quiet int
	var before float64
	// The metrics of thousands of shard groups cost the operator more than a sync.
	return testcluster.Poll(ctx, time.Second, timeout, "the operator's queues are empty", func(ctx context.Context) error {
		metrics, err := installation.ReadMetrics(ctx, operator.URL())
		if err != nil {
			return err
		}
		var done float64
		for queue, least := range map[string]float64{"importer": float64(groups), "machinepool": float64(groups), "shardgroup": float64(groups * len(shardIDs))} {
			added := metrics.Sum("workqueue_adds_total", map[string]string{"name": queue})
			if added < least {
				return fmt.Errorf("%v of %v keys were added to queue %s", added, least, queue)
			}
			done += added
		}
		for _, unfinished := range []string{"workqueue_depth", "workqueue_unfinished_work_seconds"} {
			if left := metrics.Sum(unfinished, nil); left > 0 {
				return fmt.Errorf("%s is %v", unfinished, left)
			}
		}
		// No metric counts the keys that are added after a delay.
		if quiet++; done != before {
			quiet, before = 0, done
		}
		if quiet < tier.Pick(3, 10) {
			return fmt.Errorf("nothing was added in the last %d checks", quiet)
		}
		return nil
	})
}

// groupOf returns the group of an object of that name.
func groupOf(name string) string {
	return name[:min(len(name), len(groupName(0)))]
}

// ofGroups matches the writes of pools, MachinePools and shard groups.
func ofGroups(w controlplane.Write) bool {
	return slices.Contains([]string{"nstancemachinepools", "nstanceshardgroups", "machinepools"}, w.Resource)
}

// ofOperator matches the operator's writes, other than to its lease and of events.
func ofOperator(w controlplane.Write) bool {
	return testcluster.ByOperator(w) && w.Resource != "leases" && w.Resource != "events"
}

func poll(ctx context.Context, what string, check func(context.Context) error) error {
	return testcluster.Poll(ctx, 100*time.Millisecond, timeout, what, check)
}
