// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// steps are those of a launch and of a termination.
var steps = []string{
	"clone the template", "wait for the clone", "upload the userdata", "configure the virtual machine", "enlarge the disk",
	"start the virtual machine", "return the machine",
	"stop the virtual machine", "delete the userdata", "delete the virtual machine", "return",
}

var crashes = cloudtest.Crashes[Options]{
	Steps: steps,
	Size: func(n int) int {
		if n%len(steps) >= slices.Index(steps, "stop the virtual machine") {
			return n % 2 // so that there is something to terminate
		}
		return 2 + n%3
	},
	Spec: provider.Spec{Kind: "knd", Type: testType, Subnet: "subnet", Args: map[string]any{"disk_size": "8Gi"}},
	New: func(o *Options, step func(string)) (provider.Provider, error) {
		api, err := NewAPI(o, testShard)
		if err != nil {
			return nil, err
		}
		api.step, api.limits = step, cloudtest.ShortLimits(api.limits)
		return cloud.New(api, cloud.Options{}), nil
	},
}

// TestTheServerIsKilled at each step, with a cluster whose tasks are fast.
func TestTheServerIsKilled(t *testing.T) {
	cluster := newCluster()
	cluster.CloneTime, cluster.TaskTime = 40*time.Millisecond, 20*time.Millisecond
	cluster.SyncDelay, cluster.ReportInterval = 10*time.Millisecond, 100*time.Millisecond
	cluster.Start(t)
	crashes.Test(t, testOptions(cluster), cloudtest.CrashedCloud{
		Made: func() []string { return names(cluster.Made()) },
		Settled: func(ids []string) bool {
			return !slices.ContainsFunc(ids, func(id string) bool { return len(cluster.VMs(id)) != 1 }) &&
				len(cluster.VMs("")) == len(ids) && len(cluster.ISOs()) == len(ids) && len(cluster.Disks()) == len(ids)
		},
		Existing: func() string {
			return fmt.Sprintf("virtual machines %v, images %v, disks %v", cluster.VMs(""), cluster.ISOs(), cluster.Disks())
		},
	})
}

// names returns the instances of virtual machines.
func names(all []pvetest.Machine) []string {
	var names []string
	for _, one := range all {
		names = append(names, one.Name)
	}
	return names
}
