// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
	"nstance.dev/operator/pkg/testing/tier"
)

// randomFault makes some of the next calls fail.
func randomFault(random *rand.Rand) *pvetest.Fault {
	suffixes := []string{"/clone", "/config", "/upload", "/resize", "/status/start", "/status/stop", ".iso", "/status", "cluster/resources", "cluster/status", ""}
	verbs := []string{"", http.MethodGet, http.MethodPost, http.MethodDelete}
	return &pvetest.Fault{
		Suffix: suffixes[random.IntN(len(suffixes))], Verb: verbs[random.IntN(len(verbs))], Times: 1 + random.IntN(4),
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
