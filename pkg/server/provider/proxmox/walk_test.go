// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// walker is a caller that creates and deletes random instances.
type walker struct {
	*world
	h       *providertest.Harness
	t       *testing.T
	random  *rand.Rand
	records map[string]*record
	// ever are all instances, and deleted those whose deletion was requested.
	ever, deleted map[string]bool
	nonces        int
	// settling is true at the end, when all requests are for a subnet that has room.
	settling bool
}

// reconcile does for each instance what is due, as the reconciler does.
func (w *walker) reconcile() {
	for _, vm := range w.h.List(workers) {
		r, recorded := w.records[vm.ID]
		switch {
		case !recorded:
			assert.True(w.t, w.ever[vm.ID], "instance %s was never requested", vm.ID)
			w.h.MustDelete(vm.ID) // it was forgotten before it was launched
			continue
		case vm.State == instance.Failed || vm.State == instance.Stopped:
			r.Deleted, w.deleted[vm.ID] = true, true
		}
		if vm.ProviderID != "" {
			r.ProviderID = vm.ProviderID
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		r := w.records[id]
		_, known := w.h.Get(id)
		switch {
		case r.Deleted && known:
			w.h.MustDelete(id)
		case r.Deleted:
			delete(w.records, id)
		case known:
		case r.ProviderID != "":
			w.t.Errorf("instance %s is missing", id)
			delete(w.records, id)
		default:
			w.nonces++
			spec := request(w.t).Spec
			spec.ID, spec.CreatedAt, spec.Args = id, r.CreatedAt, map[string]any{"disk_size": "8Gi"}
			spec.Userdata = fmt.Appendf(nil, "nonce %d", w.nonces)
			if !w.settling {
				spec.Subnet = []string{"subnet", "two", "full", "off"}[w.random.IntN(4)]
			}
			if room, err := w.h.Capacity(w.t.Context(), spec.Subnet); err == nil && room > 0 {
				_ = w.h.Create(w.t.Context(), spec) // is tried again
			}
		}
	}
}

// restart replaces the provider by that of another process.
func (w *walker) restart() {
	if w.h != nil {
		w.h.Stop()
	}
	w.h = w.startProvider()
	var expected []instance.VM
	for id, r := range w.records {
		expected = append(expected, instance.VM{ID: id, ProviderID: r.ProviderID, Group: workers})
	}
	w.h.Provider.(provider.Expecter).Expect(expected)
}

// fault makes some of the next calls fail.
func (w *walker) fault() *pvetest.Fault {
	suffixes := []string{"/clone", "/config", "/upload", "/resize", "/status/start", "/status/stop", ".iso", "/status", "cluster/resources", "cluster/status", ""}
	verbs := []string{"", http.MethodGet, http.MethodPost, http.MethodDelete}
	return &pvetest.Fault{
		Suffix: suffixes[w.random.IntN(len(suffixes))], Verb: verbs[w.random.IntN(len(verbs))], Times: 1 + w.random.IntN(4),
		Before: w.random.IntN(2) == 0, Status: []int{0, 0, 500, 503, 595, 596}[w.random.IntN(6)],
	}
}

// step makes one random change or fault.
func (w *walker) step() {
	node := []string{"pve1", "pve2"}[w.random.IntN(2)]
	switch what := w.random.IntN(12); {
	case what < 4:
		id := providertest.NewID(w.t)
		w.records[id], w.ever[id] = &record{CreatedAt: time.Now()}, true
	case what < 6 && len(w.records) > 0:
		id := slices.Sorted(maps.Keys(w.records))[w.random.IntN(len(w.records))]
		w.records[id].Deleted, w.deleted[id] = true, true
	case what == 6 || what == 7:
		w.SetOnline("pve1", true) // a process that starts waits for all nodes
		w.SetOnline("pve2", true)
		w.SetQuorum(true)
		w.restart()
	case what == 8:
		w.SetFaults(w.fault(), w.fault())
	case what == 9:
		w.SetQuorum(w.random.IntN(2) == 0)
	case what == 10:
		w.AddVM(slices.Max(append(w.VMs(""), 10000))+1+w.random.IntN(2), node, "other", 2*time.Second)
	default:
		w.SetCloneTime([]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}[w.random.IntN(4)])
	}
}

// TestRandomWalk creates and deletes instances at random while calls fail, responses are
// lost, the cluster loses its quorum, others take VMIDs and the process restarts at any
// point. Each instance has had at most one machine. None was deleted without a request, and
// none is left that should not exist.
func TestRandomWalk(t *testing.T) {
	seeds := uint64(5)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, world *world) {
				w := &walker{
					world: world, t: t, random: rand.New(rand.NewPCG(seed, 2)),
					records: map[string]*record{}, ever: map[string]bool{}, deleted: map[string]bool{},
				}
				w.restart()
				for range 120 {
					w.step()
					w.reconcile()
					pauses := []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second, time.Minute, 3 * time.Minute}
					time.Sleep(pauses[w.random.IntN(len(pauses))])
				}
				w.SetFaults()
				w.SetQuorum(true)
				w.SetCloneTime(time.Second)
				w.settling = true
				for range 60 {
					w.reconcile()
					time.Sleep(30 * time.Second)
				}
				w.check()
			})
		})
	}
}

func (w *walker) check() {
	wanted := slices.Sorted(maps.Keys(w.records))
	for _, id := range wanted {
		vm, _ := w.h.Get(id)
		assert.Equal(w.t, instance.Running, vm.State, "instance %s", id)
		assert.Len(w.t, w.VMs(id), 1)
	}
	others := len(w.VMs("other"))
	assert.Len(w.t, w.VMs(""), len(wanted)+others, "virtual machines")
	assert.Len(w.t, w.ISOs(), len(wanted), "images")
	assert.Len(w.t, w.Disks(), len(wanted), "disks")
	made, running := map[string]int{}, map[string]int{}
	for _, one := range w.Made() {
		made[one.Name]++
		assert.True(w.t, w.ever[one.Name], "instance %s", one.Name)
	}
	for _, one := range w.Started() {
		running[one.Name]++
	}
	for id := range running {
		assert.Equal(w.t, 1, running[id], "virtual machines of instance %s that have run", id)
		assert.True(w.t, w.deleted[id] || len(w.VMs(id)) == 1, "instance %s was deleted without a request", id)
	}
	assert.Greater(w.t, len(made), 15, "a walk that made few machines tests little")
}
