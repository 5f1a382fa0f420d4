// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// A deletion by another client is an event of a watch: the child is created again within a
// second, although the next sync is an hour away. That of a claim is synced too, and writes
// nothing.
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
