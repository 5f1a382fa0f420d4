// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/controller"
)

func TestWhichChangesOfAClusterAreRelevant(t *testing.T) {
	with := func(changes ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
		cluster := newCluster(namespace, name)
		for _, change := range changes {
			change(cluster)
		}
		return cluster
	}
	for name, test := range map[string]struct {
		before, after *clusterv1.Cluster
		want          int
	}{
		"created":        {nil, with(), 1},
		"deleted":        {with(deleting), nil, 1},
		"paused":         {with(), with(paused), 1},
		"unpaused":       {with(paused), with(), 1},
		"being deleted":  {with(), with(deleting), 0},
		"status changed": {with(), with(func(c *clusterv1.Cluster) { c.Status.Phase = "Provisioned" }), 0},
		"stays paused":   {with(paused), with(paused), 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, source())
			synctest.Test(t, func(t *testing.T) {
				syncs := 0
				h.controller.queue = controller.NewQueue("test", func(context.Context, cache.ObjectName) (time.Duration, error) {
					syncs++
					return 0, nil
				})
				h.controller.clusterChanged(test.before, test.after)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				h.controller.queue.Run(ctx, 1)
				if syncs != test.want {
					t.Errorf("synced %d times, want %d", syncs, test.want)
				}
			})
		})
	}
}
