// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// At constant load the published rate is within 10 % and the cluster gets the size of the
// load, and keeps it, whatever the time between two syncs.
func TestConstantLoadHasOneSize(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, 1100 * time.Millisecond, 7 * time.Second, 30 * time.Second} {
		h := newHarness(t, autoscaled)
		h.rate = 22_000
		sizes := []int32{3}
		for after := time.Duration(0); after < 3*time.Minute; after += every {
			h.step()
			h.advance(every)
			if size := *h.set().Spec.Replicas; size != sizes[len(sizes)-1] {
				sizes = append(sizes, size)
			}
			// The first two minutes are skipped: windows from before the load, and the
			// start of new nodes.
			if after < 2*time.Minute {
				continue
			}
			rate, err := strconv.ParseFloat(h.cluster().Status.OpsPerSecond, 64)
			require.NoError(t, err, "every %s", every)
			require.LessOrEqual(t, math.Abs(rate-22_000), 2_200.0, "every %s", every)
		}
		assert.Equal(t, []int32{3, 5}, sizes, "every %s", every)
	}
}

// timedNodes execute commands in the time of the bubble.
type timedNodes struct {
	start time.Time
	// commands is the number of commands of a node after a time.
	commands func(elapsed time.Duration) float64
	scrapes  atomic.Int64
}

func (n *timedNodes) Scrape(_ context.Context, addresses []string) []observe.Scrape {
	n.scrapes.Add(1)
	results := make([]observe.Scrape, len(addresses))
	for i := range results {
		elapsed := time.Since(n.start)
		results[i] = observe.Scrape{At: time.Now(), Metrics: &observe.Metrics{
			Sample:   scale.Sample{Underreplicated: ptr.To[int64](0), Members: ptr.To(int64(len(addresses)))},
			Commands: ptr.To(math.Floor(n.commands(elapsed))), Rounds: ptr.To(int64(elapsed / roundTime)), Moved: ptr.To[int64](0),
		}}
	}
	return results
}

func constant(elapsed time.Duration) float64 { return 1000 * elapsed.Seconds() }

// growing returns the commands at a rate that grows by 10 % in 10 seconds.
func growing(elapsed time.Duration) float64 { return 1e5 * math.Exp(elapsed.Seconds()/100) }

// With real informers and a real queue, a cluster that does not change is synced each
// period and not written in 5 minutes. A cluster with growing load is not synced more
// often, although its status is written.
func TestAQuietClusterIsNotWrittenInFiveMinutes(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*v1alpha1.MarekvsCluster)
		commands func(time.Duration) float64
		writes   bool
	}{
		"fixed":      {nil, constant, false},
		"autoscaled": {autoscaled, constant, false},
		"growing":    {nil, growing, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, c.change)
			scraper := &timedNodes{start: time.Now(), commands: c.commands}
			operator := h.newInstance(h.kube, scraper)
			operator.Clock = clock.RealClock{}
			ctx, cancel := context.WithCancel(t.Context())
			operator.watch(ctx)
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				operator.Run(ctx)
			}()
			time.Sleep(3 * time.Minute) // it learns what was applied, and the rate
			synctest.Wait()
			require.NotEmpty(t, h.writes(), name)
			assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, name)
			scrapes := scraper.scrapes.Load()
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			assert.Equal(t, int64(5*time.Minute/period), scraper.scrapes.Load()-scrapes, "%s: syncs", name)
			if written := h.writes(); c.writes {
				assert.Len(t, written, int(scraper.scrapes.Load()-scrapes), "%s: the status only", name)
			} else {
				assert.Empty(t, written, name)
			}
			cancel()
			<-stopped
			synctest.Wait()
		})
	}
}

// A deletion by another client is an event of a watch: the child is created again within a
// second, although the next sync is an hour away. The deletion of a claim causes a sync
// that writes nothing.
func TestADeletionIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		scraper := &timedNodes{start: time.Now(), commands: constant}
		operator := h.newInstance(h.kube, scraper)
		operator.Clock, operator.Period = clock.RealClock{}, time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		operator.watch(ctx)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			operator.Run(ctx)
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		h.writes()
		remove := func(resource schema.GroupVersionResource, name string) []string {
			h.builtIn.Remove(resource, "ns", name)
			time.Sleep(time.Second)
			synctest.Wait()
			return h.writes()
		}
		for _, c := range []struct {
			resource   schema.GroupVersionResource
			name, want string
		}{
			{serviceResource, "demo", applyClient},
			{serviceResource, "demo-headless", applyHeadless},
			{budgetResource, "demo", applyBudget},
		} {
			assert.Contains(t, remove(c.resource, c.name), c.want)
		}
		scrapes := scraper.scrapes.Load()
		assert.Empty(t, remove(claimResource, "data-demo-1"))
		assert.Equal(t, scrapes+1, scraper.scrapes.Load(), "one sync")
		assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
		assert.Contains(t, remove(setResource, "demo"), applySet)
		if set := h.set(); assert.NotNil(t, set) {
			assert.Equal(t, int32(3), *set.Spec.Replicas)
		}
		cancel()
		<-stopped
		synctest.Wait()
	})
}
