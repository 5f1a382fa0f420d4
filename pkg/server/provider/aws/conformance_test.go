// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run:            synctest.Test,
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      otherType,
		Subnet:         largeSubnet,
		LimitedSubnet:  smallSubnet,
		RejectedSubnet: rejectedSubnet,
		QuietPeriod:    5 * time.Minute,
		Markets:        &Options{},
	})
}

// newBackend returns a region without instances.
func newBackend(t *testing.T) providertest.Backend {
	s := newRegion()
	s.StartInMemory(t)
	options := testOptions(s)
	b := cloudtest.NewBackendOf(t, func(shard provider.Shard) (*API, error) {
		shard.Zone = ec2test.Zone // all subnets are in this zone
		return newAPI(options, shard, s.Dial)
	}, func(shard provider.Shard) cloud.Options {
		return cloud.Options{ExpectedNode: expectedNode(shard), Market: market}
	})
	b.Existing, b.Remove = s.Existing, s.Terminate
	b.Stock = func(typeName, market string, available bool) {
		s.SetFull(typeName, ec2test.Zone, marketArgument.Values[market], !available)
	}
	return b
}

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	tags := tagsOf(testShard, providertest.MetadataSpec(t), nil)
	assert.Equal(t, providertest.DocumentedMetadata(t, Name), providertest.MetadataNames(tagPrefix, tags))
}

// steps are the steps of a launch and of a termination. "record the machine" is between the
// return of the launch and the write of the record.
var steps = []string{
	"launch the instance", "return the machine", "record the machine", "terminate the instance", "return",
}

// hidden is how long the region of the crashes does not show an instance that was launched.
const hidden = 60 * time.Millisecond

var crashes = cloudtest.Crashes[Options]{
	Steps: steps,
	Size: func(n int) int {
		if n%len(steps) >= slices.Index(steps, "terminate the instance") {
			return n % 2 // so that there is something to terminate
		}
		return 2 + n/len(steps)%3 + n%len(steps)
	},
	Spec: provider.Spec{Kind: "knd", Type: testType, Subnet: largeSubnet},
	New: func(o *Options, step func(string)) (provider.Provider, error) {
		api, err := NewAPI(o, testShard)
		if err != nil {
			return nil, err
		}
		api.step, api.limits = step, cloudtest.ShortLimits(api.limits)
		// A new process may list twice what the last one has just launched, and an instance
		// is missing that two lists leave out.
		api.limits.PollInterval, api.limits.IdleInterval = hidden+10*time.Millisecond, hidden+10*time.Millisecond
		return cloud.New(api, cloud.Options{}), nil
	},
}

// TestTheServerIsKilled at each step, with a region whose instances are fast.
func TestTheServerIsKilled(t *testing.T) {
	region := newRegion()
	region.BootTime, region.StopTime = 40*time.Millisecond, 40*time.Millisecond
	region.DelayVisibility(hidden)
	region.Start(t)
	crashes.Test(t, testOptions(region), cloudtest.CrashedCloud{
		Made:     func() []string { return tags(region.Made()) },
		Settled:  func(ids []string) bool { return slices.Equal(ids, region.Existing()) },
		Existing: func() string { return fmt.Sprintf("instances %v", region.Existing()) },
	})
}

// tags returns the instances that were launched.
func tags(all []ec2test.Made) []string {
	var tags []string
	for _, made := range all {
		tags = append(tags, made.Tag)
	}
	return tags
}

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
	f.Call, f.Times = actions[random.IntN(len(actions))], 1+random.IntN(4)
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
				s.Type = []provider.InstanceType{testType, otherType}[random.IntN(2)]
				s.Args = map[string]any{argMarket: []string{marketOnDemand, marketSpot}[random.IntN(2)]}
			}
			return s
		},
		Events: []func(){
			func() { w.SetFaults(randomFault(random), randomFault(random)) },
			func() { w.SetFull(testType.Name, ec2test.Zone, marketOnDemand, random.IntN(2) == 0) },
			func() { w.SetFull(otherType.Name, ec2test.Zone, marketSpot, random.IntN(2) == 0) },
			func() { w.SetOffered(otherType.Name, ec2test.Zone, random.IntN(2) == 0) },
			func() {
				code := []string{"Server.InternalError", "Server.InsufficientInstanceCapacity"}[random.IntN(2)]
				w.FailLaunches(random.IntN(3), code, code+": the launch has failed")
			},
			func() {
				w.DelayVisibility([]time.Duration{0, 5 * time.Second, 30 * time.Second, time.Minute}[random.IntN(4)])
			},
			func() { w.Throttle(time.Duration(random.IntN(90)) * time.Second) },
		},
		Settle: func() {
			w.SetFaults()
			w.SetFull(testType.Name, ec2test.Zone, marketOnDemand, false)
			w.SetFull(otherType.Name, ec2test.Zone, marketSpot, false)
			w.SetOffered(otherType.Name, ec2test.Zone, true)
			w.FailLaunches(0, "", "")
			w.DelayVisibility(0)
		},
		// A launch whose result is unknown waits for the visibility of its machine, and may then be rejected.
		SettleSteps: 160,
		Made:        func() []string { return tags(w.Made()) },
		Ran:         func() []string { return tags(w.Made()) },
		Deleted: func() []string {
			terminated := w.Terminated()
			return tags(slices.DeleteFunc(w.Made(), func(made ec2test.Made) bool { return !slices.Contains(terminated, made.InstanceID) }))
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
