// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
)

// steps are those of a launch and of a termination.
var steps = []string{
	"request the machine", "wait for the operation", "read the machine", "return the machine",
	"delete the machine", "return",
}

// crashes are those of processes that use application default credentials.
var crashes = cloudtest.Crashes[Options]{
	Steps: steps,
	Size: func(n int) int {
		// More than before, so that there is something to launch, and then less.
		if left := len(steps) - 1 - n%len(steps); left <= len(steps)-1-slices.Index(steps, "delete the machine") {
			return left
		}
		return 2 + n%len(steps)
	},
	Spec: provider.Spec{Kind: "knd", Type: testType, Subnet: "subnet"},
	New: func(o *Options, step func(string)) (provider.Provider, error) {
		api, err := NewAPI(o, testShard)
		if err != nil {
			return nil, err
		}
		api.step, api.limits = step, cloudtest.ShortLimits(api.limits)
		return cloud.New(api, cloud.Options{}), nil
	},
}

// TestTheServerIsKilled at each step, with a project whose operations are fast.
func TestTheServerIsKilled(t *testing.T) {
	project := gcetest.New()
	project.OperationTime, project.BootTime, project.DeleteTime = 30*time.Millisecond, 20*time.Millisecond, 30*time.Millisecond
	project.Start(t)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", project.Credentials(t))
	crashes.Test(t, testOptions(project), cloudtest.CrashedCloud{
		Made:     project.Made,
		Settled:  func(ids []string) bool { return slices.Equal(ids, project.All()) && len(project.Disks()) == len(ids) },
		Existing: func() string { return fmt.Sprintf("virtual machines %v, disks %v", project.All(), project.Disks()) },
	})
}
