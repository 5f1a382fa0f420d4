// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// TestTerminate stops and deletes machines with their userdata.
func TestTerminate(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		var list []cloud.VM
		for range 3 {
			list = append(list, w.launch(request(t)))
		}
		w.SetStatus(w.vmid(list[1].ID), "stopped")
		w.SetStatus(w.vmid(list[2].ID), "paused")
		kept := w.launch(request(t))
		missing := cloud.VM{ID: "knd06bgm7733st2576nx5jht4ecj"}
		errs := w.api.Terminate(t.Context(), append(list, missing))
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[missing.ID], cloud.ErrNotFound)
		assert.Equal(t, []int{w.vmid(kept.ID)}, w.VMs(""))
		assert.Len(t, w.ISOs(), 1)
		assert.Len(t, w.Disks(), 1)
	})
}

// TestATerminationThatFails is repeated, and continues where it was.
func TestATerminationThatFails(t *testing.T) {
	for _, tc := range []struct {
		verb, suffix string
		before       bool
	}{
		{http.MethodPost, "/status/stop", false}, {http.MethodPost, "/status/stop", true},
		{http.MethodDelete, ".iso", false}, {http.MethodDelete, ".iso", true},
		{http.MethodDelete, "/qemu/10000", false}, {http.MethodDelete, "/qemu/10000", true},
	} {
		t.Run(tc.suffix, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				m := w.launch(request(t))
				w.SetFaults(&pvetest.Fault{Verb: tc.verb, Call: tc.suffix, Before: tc.before, Times: 1})
				assert.Len(t, w.api.Terminate(t.Context(), []cloud.VM{m}), 1)
				time.Sleep(5 * time.Second)
				w.api = w.newAPI(testShard)
				if err := w.api.Terminate(t.Context(), []cloud.VM{m})[m.ID]; tc.suffix == "/qemu/10000" && !tc.before {
					require.ErrorIs(t, err, cloud.ErrNotFound, "the first call has deleted it")
				} else {
					require.NoError(t, err)
				}
				assert.Empty(t, w.VMs(""))
				assert.Empty(t, w.ISOs())
				assert.Empty(t, w.Disks())
			})
		})
	}
}

// TestTheUserdataOfAMachineThatAUserDeleted is deleted with the instance, whatever node has it.
func TestTheUserdataOfAMachineThatAUserDeleted(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		deleted := []cloud.VM{w.launch(request(t)), w.launch(request(t))}
		kept := w.launch(request(t))
		nodes := map[string]bool{}
		for _, vm := range deleted {
			node, _ := w.Status(w.vmid(vm.ID))
			nodes[node] = true
			w.Remove(w.vmid(vm.ID))
		}
		require.Len(t, nodes, 2)
		require.Len(t, w.ISOs(), 3)
		time.Sleep(w.ReportInterval)
		for id, err := range w.newAPI(testShard).Terminate(t.Context(), deleted) {
			require.ErrorIs(t, err, cloud.ErrNotFound, id)
		}
		assert.Equal(t, []string{"nstance-" + kept.ID + ".iso"}, w.ISOs())
	})
}

// TestTheUserdataOfAMachineIsRemoved once its agent has registered: the machine can be migrated,
// and started again without it.
func TestTheUserdataOfAMachineIsRemoved(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		m := w.launch(request(t))
		vmid := w.vmid(m.ID)
		w.SetFaults(&pvetest.Fault{Verb: http.MethodDelete, Call: ".iso", Times: 1, Before: true, Status: http.StatusInternalServerError, Message: "try again"})
		require.Error(t, w.api.RemoveUserdata(t.Context(), m))
		for _, api := range []*API{w.api, w.newAPI(testShard)} {
			require.NoError(t, api.RemoveUserdata(t.Context(), m))
			assert.Equal(t, "none,media=cdrom", w.Config(vmid)["ide2"])
			assert.Empty(t, w.ISOs())
		}
		// It is known without its tags too.
		w.Set(vmid, "tags", "golden")
		w.SetStatus(vmid, "stopped")
		time.Sleep(w.ReportInterval)
		w.api = w.newAPI(testShard)
		assert.Equal(t, instance.Stopped, w.list()[m.ID].State)
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Empty(t, w.VMs(""))
	})
}

// TestALockedMachine is not terminated before it is unlocked.
func TestALockedMachine(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		m := w.launch(request(t))
		w.SetLock(w.vmid(m.ID), "backup")
		errs := w.api.Terminate(t.Context(), []cloud.VM{m})
		require.ErrorContains(t, errs[m.ID], "VM is locked (backup)")
		assert.Equal(t, instance.Running, w.list()[m.ID].State)
		w.SetLock(w.vmid(m.ID), "")
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Empty(t, w.VMs(""))
	})
}

// TestASlowTermination takes several calls. None of the calls fails.
func TestASlowTermination(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		m := w.launch(request(t))
		w.TaskTime = 30 * time.Second
		for n := 0; len(w.VMs("")) > 0; n++ {
			require.Less(t, n, 10, "calls")
			require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
			time.Sleep(time.Minute)
		}
		assert.Empty(t, w.ISOs())
	})
}

// TestAProtectedTemplate: its machines are not protected.
func TestAProtectedTemplate(t *testing.T) {
	s := pvetest.New("pve1", "pve2")
	s.AddTemplate(9000, "pve1", "debian", "ceph", 4)("protection", "1")
	inBubble(t, s, func(t *testing.T, w *world) {
		m := w.launch(request(t))
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Empty(t, w.VMs(""))
	})
}

// TestRoom counts the machines of a subnet that exist.
func TestRoom(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		r.Subnet = "two"
		m := w.launch(r)
		w.launch(request(t)) // in another subnet
		room, err := w.api.Room(t.Context(), "two")
		require.NoError(t, err)
		assert.Equal(t, 1, room)
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		room, err = w.api.Room(t.Context(), "two")
		require.NoError(t, err)
		assert.Equal(t, 2, room)
		room, err = w.api.Room(t.Context(), "subnet")
		require.NoError(t, err)
		assert.Greater(t, room, 1000)
	})
}

// TestALostCloneIsNotRejected: the response of the clone is lost, and the repetition is
// refused. The virtual machine exists all the same.
func TestALostCloneIsNotRejected(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.SyncDelay = 10 * time.Second
		w.SetFaults(
			&pvetest.Fault{Verb: http.MethodPost, Call: "/clone", Times: 1},
			&pvetest.Fault{Verb: http.MethodPost, Call: "/clone", Times: 1, Before: true, Status: http.StatusForbidden, Message: "Permission check failed"},
		)
		w.launchDespiteErrors(request(t))
		assert.Len(t, w.Made(), 1)
		assert.Len(t, w.VMs(""), 1)
	})
}

// TestATerminationThatFindsNoMachine, for example because it was migrated, was not accepted.
func TestATerminationThatFindsNoMachine(t *testing.T) {
	for _, suffix := range []string{"/status/current", "/status/stop", "/qemu/10000"} {
		t.Run(suffix, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				m := w.launch(request(t))
				w.SetFaults(&pvetest.Fault{
					Call: suffix, Before: true, Status: http.StatusInternalServerError,
					Message: "Configuration file 'nodes/one/qemu-server/10000.conf' does not exist",
				})
				require.ErrorIs(t, w.api.Terminate(t.Context(), []cloud.VM{m})[m.ID], cloud.ErrNotFound)
				assert.Len(t, w.VMs(""), 1)
				w.SetFaults()
				require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
				assert.Empty(t, w.VMs(""))
			})
		})
	}
}
