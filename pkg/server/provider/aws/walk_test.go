// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/testing/tier"
)

// randomFault makes some of the next calls fail.
func randomFault(random *rand.Rand) *ec2test.Fault {
	actions := []string{"RunInstances", "DescribeInstances", "DescribeInstanceStatus", "TerminateInstances", "DescribeSubnets", ""}
	faults := []ec2test.Fault{
		{}, {},
		{Status: http.StatusInternalServerError, Code: "InternalError"},
		{Status: http.StatusBadGateway},
		// A response that the call was rejected is true only if it had no effect.
		{Before: true, Status: http.StatusServiceUnavailable, Code: "RequestLimitExceeded"},
		{Before: true, Status: http.StatusForbidden, Code: "UnauthorizedOperation"},
		{Before: true, Status: http.StatusBadRequest, Code: "ExpiredToken"},
	}
	f := &faults[random.IntN(len(faults))]
	f.Action, f.Times = actions[random.IntN(len(actions))], 1+random.IntN(4)
	f.Before = f.Before || random.IntN(2) == 0
	return f
}

// walk returns a random walk in which also capacity comes and goes, instances fail before
// they run, and reads are late.
func (w *world) walk(random *rand.Rand) *cloudtest.Walk {
	return &cloudtest.Walk{
		Random: random,
		Start:  w.startProvider,
		Spec: func(settling bool) provider.Spec {
			s := spec()
			if !settling {
				s.Subnet = []string{largeSubnet, smallSubnet, rejectedSubnet}[random.IntN(3)]
			}
			return s
		},
		Events: []func(){
			func() { w.SetFaults(randomFault(random), randomFault(random)) },
			func() { w.SetFull(testType.Name, ec2test.Zone, "on-demand", random.IntN(2) == 0) },
			func() {
				w.FailLaunches(random.IntN(3), "Server.InternalError", "Server.InternalError: Internal error on launch")
			},
			func() {
				w.DelayVisibility([]time.Duration{0, 5 * time.Second, 30 * time.Second, time.Minute}[random.IntN(4)])
			},
			func() { w.Throttle(time.Duration(random.IntN(90)) * time.Second) },
		},
		Settle: func() {
			w.SetFaults()
			w.SetFull(testType.Name, ec2test.Zone, "on-demand", false)
			w.FailLaunches(0, "", "")
			w.DelayVisibility(0)
		},
		SettleSteps: 80,
		Made:        func() []string { return tags(w.Made()) },
		Ran:         func() []string { return tags(w.Made()) },
		Deleted: func() []string {
			terminated := w.Terminated()
			return tags(slices.DeleteFunc(w.Made(), func(one ec2test.Made) bool { return !slices.Contains(terminated, one.InstanceID) }))
		},
		Check: func(wanted []string) { assert.Equal(w.t, wanted, w.Existing(), "instances") },
		Least: 10,
	}
}

func TestRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 10)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			region := newRegion()
			region.PageSize = 2
			inBubble(t, region, func(t *testing.T, w *world) { w.walk(rand.New(rand.NewPCG(seed, 2))).Test(t) })
		})
	}
}
