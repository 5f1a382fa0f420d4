// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
)

// steps are those of a launch and of a termination. "record the machine" is between the
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
	for _, one := range all {
		tags = append(tags, one.Tag)
	}
	return tags
}
