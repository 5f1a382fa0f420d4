// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// otherShard is another shard of the cluster of testShard.
var otherShard = provider.Shard{ClusterID: "test", ID: "b", Region: "region", Zone: "zone"}

// TestTheTagsOfATemplate: a clone has the tags of its template until it is configured, so
// tags do not identify it. If a process is killed, the next process finds the clone and
// creates no other.
func TestTheTagsOfATemplate(t *testing.T) {
	for _, tags := range []string{"nstance", strings.Join(tagsOf(otherShard), ";"), strings.Join(tagsOf(testShard), ";")} {
		for _, disks := range []int{1, 2} {
			t.Run(fmt.Sprint(tags, ", disks: ", disks), func(t *testing.T) {
				inBubble(t, newCluster(), func(t *testing.T, w *world) {
					w.Set(9000, "tags", tags)
					if disks == 2 {
						w.Set(9000, "efidisk0", efiDisk)
					}
					w.CloneTime = time.Minute
					r := request(t)
					w.interrupt(r, 10*time.Second)
					time.Sleep(5 * time.Minute)
					h := w.startProvider()
					r.Userdata = []byte("another nonce")
					h.MustCreate(r.Spec)
					time.Sleep(10 * time.Minute)
					require.Len(t, w.VMs(r.ID), 1)
					assert.Len(t, w.VMs(""), 1)
					vm, known := h.Get(r.ID)
					assert.True(t, known)
					assert.NotEqual(t, instance.Running, vm.State)
					h.MustDelete(r.ID)
					time.Sleep(time.Minute)
					assert.Empty(t, w.VMs(""))
					assert.Empty(t, w.Disks())
				})
			})
		}
	}
}

// TestTagsThatWereChanged by a user hide no VM, neither from the process that has launched it
// nor from a later process.
func TestTagsThatWereChanged(t *testing.T) {
	for _, tags := range []string{
		"", "nstance;web", "nstance;nstance-cluster-test", "web;nstance-shard-a", strings.Join(tagsOf(otherShard), ";"),
	} {
		t.Run(tags, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				h := w.startProvider()
				id := h.MustRun(request(t).Spec)
				time.Sleep(5 * time.Minute)
				vmid := w.vmid(id)
				w.Set(vmid, "tags", tags)
				for _, start := range []func(){func() {}, func() { h.Stop(); h = w.startProvider() }} {
					start()
					for range 20 {
						time.Sleep(time.Minute)
						vm, known := h.Get(id)
						require.True(t, known)
						require.Equal(t, instance.Running, vm.State)
					}
				}
				other, err := w.newAPI(otherShard).List(t.Context())
				require.NoError(t, err)
				assert.Empty(t, other, "machines of another shard")
				w.SetStatus(vmid, statusStopped)
				time.Sleep(w.ReportInterval)
				w.api = w.newAPI(testShard)
				assert.Equal(t, instance.Stopped, w.list()[id].State)
				require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{{ID: id}}))
				assert.Empty(t, w.VMs(""))
			})
		})
	}
}

// TestTagsThatWereChangedAndANodeThatFails: what was read before counts as long as nothing
// can be read.
func TestTagsThatWereChangedAndANodeThatFails(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		vmid := w.vmid(r.ID)
		w.Set(vmid, "tags", "nstance;web")
		time.Sleep(w.ReportInterval)
		before := w.list()
		require.Contains(t, before, r.ID)
		node, _ := w.Status(vmid)
		w.SetOnline(node, false)
		for range 12 {
			assert.Equal(t, before, w.list())
			time.Sleep(time.Minute)
		}
		_, _, err := w.newAPI(testShard).Find(t.Context(), r.ID)
		require.ErrorContains(t, err, "10000 on node "+node)
	})
}

// TestCallsForTheMachinesOfOthers: the virtual machines of another shard are read once,
// although their names are instance ids. If their node fails, the virtual machines of this
// shard can still be read.
func TestCallsForTheMachinesOfOthers(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		other := &world{t: t, Server: w.Server, options: w.options, api: w.newAPI(otherShard)}
		for range 10 {
			other.launch(request(t))
		}
		time.Sleep(w.ReportInterval)
		assert.Empty(t, w.list())
		w.Calls()
		for range 5 {
			assert.Empty(t, w.list())
			time.Sleep(time.Minute)
		}
		assert.Equal(t, map[string]int{"GET cluster/status": 5, "GET cluster/resources": 5}, w.Calls())
		w.SetOnline("pve2", false)
		time.Sleep(10 * time.Minute)
		for _, api := range []*API{w.api, w.newAPI(testShard)} {
			_, found, err := api.Find(t.Context(), request(t).ID)
			require.NoError(t, err)
			assert.False(t, found)
		}
	})
}

// TestAVMIDThatIsUsedAgain by another shard: what was read of the machine that had it before
// proves nothing about the new one.
func TestAVMIDThatIsUsedAgain(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		other := &world{t: t, Server: w.Server, options: w.options, api: w.newAPI(otherShard)}
		mine, theirs := request(t), request(t)
		w.launch(mine)
		w.Set(w.vmid(mine.ID), "tags", "golden") // that of the template
		time.Sleep(w.ReportInterval)
		require.Contains(t, w.list(), mine.ID)
		w.Remove(w.vmid(mine.ID))
		other.launch(theirs)
		require.Equal(t, 10000, w.vmid(theirs.ID))
		w.Set(10000, "tags", "golden")
		for range 30 {
			assert.Empty(t, w.list())
			errs := w.api.Terminate(t.Context(), []cloud.VM{{ID: mine.ID}})
			require.ErrorIs(t, errs[mine.ID], cloud.ErrNotFound)
			assert.Contains(t, other.list(), theirs.ID)
			time.Sleep(time.Second)
		}
	})
}

// TestAVMIDOfAnotherShardThatIsUsedAgain for a machine of this shard, whose clone has the
// tags of the machine before.
func TestAVMIDOfAnotherShardThatIsUsedAgain(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.Set(9000, "tags", strings.Join(tagsOf(otherShard), ";"))
		other := &world{t: t, Server: w.Server, options: w.options, api: w.newAPI(otherShard)}
		theirs, mine := request(t), request(t)
		other.launch(theirs)
		time.Sleep(w.ReportInterval)
		assert.Empty(t, w.list())
		w.Remove(w.vmid(theirs.ID))
		process := &world{t: t, Server: w.Server, options: w.options, api: w.newAPI(testShard)}
		process.interrupt(mine, time.Second)
		time.Sleep(w.CloneTime + w.ReportInterval)
		require.Equal(t, 10000, w.vmid(mine.ID))
		assert.Contains(t, w.list(), mine.ID)
	})
}

// TestNotesOfOneMachineThatWereEdited: the next leader lists the other instances, reports this
// one, and keeps it as its record says until the notes are corrected.
func TestNotesOfOneMachineThatWereEdited(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		h := w.startProvider()
		var records []instance.VM
		want := map[string]instance.State{}
		for range 3 {
			id := h.MustRun(newSpec(t))
			vm, _ := h.Get(id)
			records = append(records, vm)
			want[id] = instance.Running
		}
		edited := records[1].ID
		vmid := w.vmid(edited)
		notes := w.Config(vmid)["description"]
		require.Contains(t, notes, notesTitle)
		w.Set(vmid, "description", "rack 4, ask Bob before reboot")
		time.Sleep(time.Minute)
		h.Stop()
		h = w.startProvider()
		assert.Len(t, h.List(workers), 2, "before the records are known")
		h.Provider.(provider.Expecter).Expect(records)
		time.Sleep(time.Hour)
		assert.Equal(t, want, h.States(workers))
		got, _ := h.Get(edited)
		assert.True(t, records[1].Equal(got), "want %v, got %v", records[1], got)
		errs := h.ExpectFailures(1, workers, edited)
		require.ErrorContains(t, errs[0], fmt.Sprintf("virtual machine %d has the tags of this shard, but its notes do not say", vmid))

		h.MustDelete(edited)
		time.Sleep(time.Hour)
		assert.Len(t, w.VMs(""), 3, "it is not terminated")
		assert.Equal(t, instance.Terminating, h.States(workers)[edited])
		w.Set(vmid, "description", notes)
		h.Await(workers, map[string]instance.State{edited: providertest.Deleted})
		assert.Len(t, w.VMs(""), 2)
		assert.Empty(t, h.Failures)
	})
}
