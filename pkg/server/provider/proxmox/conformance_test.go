// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestMain(m *testing.M) {
	os.Setenv(tokenEnv, pvetest.Token)
	os.Exit(crashes.Main(m))
}

func isInProgress(err error) bool { return errors.Is(err, cloud.ErrInProgress) }

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run:            synctest.Test,
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      largeType,
		Subnet:         "subnet",
		LimitedSubnet:  "two",
		RejectedSubnet: "full",
		QuietPeriod:    5 * time.Minute,
	})
}

// newBackend returns a cluster without machines.
func newBackend(t *testing.T) providertest.Backend {
	s := newCluster()
	s.StartInMemory(t)
	// When a list shows one of two concurrent launches, both have finished.
	s.CloneTime, s.TaskTime = 100*time.Millisecond, 100*time.Millisecond
	options := testOptions(s)
	b := cloudtest.NewBackendOf(t, func(shard provider.Shard) (*API, error) { return newAPI(options, shard, s.Dial) }, func(shard provider.Shard) cloud.Options {
		return cloud.Options{ExpectedNode: expectedNode(shard)}
	})
	b.Existing = func() []string { return started(s) }
	b.Remove = func(id string) {
		for _, vmid := range s.VMs(id) {
			s.Remove(vmid)
		}
	}
	return b
}

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	names := providertest.JSONNames(t, newIdentity(testShard, providertest.MetadataSpec(t), firstVMID, "userdata"))
	assert.Equal(t, providertest.DocumentedMetadata(t, Name), names)
}

// steps are the steps of a launch and of a termination.
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
	for _, made := range all {
		names = append(names, made.Name)
	}
	return names
}

// randomFault makes some of the next calls fail.
func randomFault(random *rand.Rand) *pvetest.Fault {
	suffixes := []string{"/clone", "/config", "/upload", "/resize", "/status/start", "/status/stop", ".iso", "/status", "cluster/resources", "cluster/status", ""}
	verbs := []string{"", http.MethodGet, http.MethodPost, http.MethodDelete}
	return &pvetest.Fault{
		Call: suffixes[random.IntN(len(suffixes))], Verb: verbs[random.IntN(len(verbs))], Times: 1 + random.IntN(4),
		Before: random.IntN(2) == 0, Status: []int{0, 0, 500, 503, 595, 596}[random.IntN(6)],
	}
}

// walk returns a random walk in which also the cluster loses its quorum and others take
// VMIDs. Of several virtual machines of an instance, only one is ever started.
func (w *world) walk(random *rand.Rand) *cloudtest.Walk {
	return &cloudtest.Walk{
		Random: random,
		Start:  w.startProvider,
		Restarting: func() { // a process that starts waits for all nodes
			w.SetOnline("pve1", true)
			w.SetOnline("pve2", true)
			w.SetQuorum(true)
		},
		Spec: func(settling bool) provider.Spec {
			spec := request(w.t).Spec
			spec.Args = map[string]any{"disk_size": "8Gi"}
			if !settling {
				spec.Subnet = []string{"subnet", "two", "full", "off"}[random.IntN(4)]
			}
			return spec
		},
		Events: []func(){
			func() { w.SetFaults(randomFault(random), randomFault(random)) },
			func() { w.SetQuorum(random.IntN(2) == 0) },
			func() {
				node := []string{"pve1", "pve2"}[random.IntN(2)]
				w.AddVM(slices.Max(append(w.VMs(""), 10000))+1+random.IntN(2), node, "other", 2*time.Second)
			},
			func() {
				w.SetCloneTime([]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}[random.IntN(4)])
			},
		},
		Settle: func() {
			w.SetFaults()
			w.SetQuorum(true)
			w.SetCloneTime(time.Second)
		},
		SettleSteps: 60,
		Made:        func() []string { return names(w.Made()) },
		Ran:         func() []string { return names(w.Started()) },
		Deleted: func() []string {
			return slices.DeleteFunc(names(w.Started()), func(id string) bool { return len(w.VMs(id)) == 1 })
		},
		Check: func(wanted []string) {
			for _, id := range wanted {
				assert.Len(w.t, w.VMs(id), 1)
			}
			assert.Len(w.t, w.VMs(""), len(wanted)+len(w.VMs("other")), "virtual machines")
			assert.Len(w.t, w.ISOs(), len(wanted), "images")
			assert.Len(w.t, w.Disks(), len(wanted), "disks")
		},
		Least: 15,
	}
}

func TestRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(2, 10)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				if seed%2 == 1 {
					w.Set(9000, "tags", ownershipTag)
					w.Set(9000, "efidisk0", efiDisk)
				}
				w.walk(rand.New(rand.NewPCG(seed, 2))).Test(t)
			})
		})
	}
}
