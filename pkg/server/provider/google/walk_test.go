// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/testing/tier"
)

// randomFault makes some of the next calls fail.
func randomFault(random *rand.Rand) *gcetest.Fault {
	methods := []string{"instances.insert", "instances.get", "instances.list", "instances.delete", "zoneOperations.get", "subnetworks.get", ""}
	statuses := []int{0, 0, 401, 404, 429, 500, 503}
	f := &gcetest.Fault{
		Method: methods[random.IntN(len(methods))], Times: 1 + random.IntN(4),
		Before: random.IntN(2) == 0, Status: statuses[random.IntN(len(statuses))],
	}
	// A response that the call was rejected is true only if it had no effect.
	f.Before = f.Before || f.Status == 401 || f.Status == 404 || f.Status == 429
	return f
}

// walk returns a random walk in which also capacity comes and goes.
func (w *world) walk(random *rand.Rand) *cloudtest.Walk {
	return &cloudtest.Walk{
		Random: random,
		Start:  w.startProvider,
		Spec: func(settling bool) provider.Spec {
			spec := newSpec(w.t)
			if !settling {
				spec.Subnet = []string{"subnet", "subnet", "two", "full", "missing"}[random.IntN(5)]
			}
			return spec
		},
		Events: []func(){
			func() { w.SetFaults(randomFault(random), randomFault(random)) },
			func() { w.SetExhausted("e2-small", standard, random.IntN(2) == 0) },
			func() { w.Reject("e2-small", []string{"", "INTERNAL_ERROR", "QUOTA_EXCEEDED"}[random.IntN(3)]) },
			func() {
				w.SetOperationTime([]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}[random.IntN(4)])
			},
		},
		Settle: func() {
			w.SetFaults()
			w.SetExhausted("e2-small", standard, false)
			w.Reject("e2-small", "")
			w.SetOperationTime(time.Second)
		},
		SettleSteps: 80,
		Made:        w.Made,
		Ran:         w.Made,
		Deleted:     w.Deleted,
		Check: func(wanted []string) {
			assert.Equal(w.t, wanted, w.All(), "machines")
			assert.Len(w.t, w.Disks(), len(wanted), "disks")
		},
		Least: 2,
	}
}

func TestRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(3, 20)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := gcetest.New()
			s.Lenient, s.PageSize = seed%2 == 1, 2
			s.VisibilityDelay = []time.Duration{0, 0, 30 * time.Second}[seed%3]
			inBubble(t, s, func(t *testing.T, w *world) { w.walk(rand.New(rand.NewPCG(seed, 2))).Test(t) })
		})
	}
}
