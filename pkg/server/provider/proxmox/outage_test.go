// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// startProvider starts the provider of a process.
func (w *world) startProvider() *providertest.Harness {
	w.t.Helper()
	return providertest.Start(w.t, func(callContext provider.CallContextFunc) provider.Provider {
		return cloud.New(w.newAPI(testShard), cloud.Options{CallContext: callContext})
	})
}

// newSpec returns one without an id.
func newSpec(t *testing.T) provider.Spec {
	t.Helper()
	spec := request(t).Spec
	spec.ID = ""
	return spec
}

// TestAnOutage: for ten minutes the API does not respond, or responds wrongly. No instance
// changes its state or is terminated. Afterwards an instance that has vanished is missing.
func TestAnOutage(t *testing.T) {
	for name, fault := range map[string]*pvetest.Fault{
		"no response":      {Before: true, Hang: true},
		"lost connections": {Before: true},
		"HTTP 500":         {Before: true, Status: http.StatusInternalServerError, Message: "got no worker upid"},
		"HTTP 595":         {Before: true, Status: 595, Message: "No route to host"},
		"HTTP 401":         {Before: true, Status: http.StatusUnauthorized, Message: "invalid token value!"},
		"HTTP 404":         {Before: true, Status: http.StatusNotFound, Message: "not found"},
		"nothing exists":   {Before: true, Status: http.StatusInternalServerError, Message: "Configuration file does not exist"},
		"empty lists":      {Before: true, Status: http.StatusOK},
		"an empty list":    {Before: true, Call: "cluster/resources", Status: http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				cloudtest.Outage{
					Start:  w.startProvider,
					Spec:   newSpec(t),
					Begin:  func() { w.SetFaults(fault) },
					End:    func() { w.SetFaults() },
					Delete: func(id string) { w.Remove(w.vmid(id)) },
					Calls:  w.Calls,
					IsRead: func(call string) bool { return strings.HasPrefix(call, "GET ") },
					Made:   func() int { return len(w.Made()) },
				}.Test(t)
			})
		})
	}
}

// TestAnOutageWhileInstancesAreCreatedAndDeleted delays them.
func TestAnOutageWhileInstancesAreCreatedAndDeleted(t *testing.T) {
	for n, pause := range []time.Duration{0, time.Second, 3 * time.Second, 5 * time.Second, 9 * time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				h := w.startProvider()
				deleted := h.MustRun(newSpec(t))
				created := h.MustCreate(newSpec(t))
				h.MustDelete(deleted)
				time.Sleep(pause)
				w.SetFaults(&pvetest.Fault{Before: n%2 == 0, Status: 596 * (n % 3)})
				time.Sleep(10 * time.Minute)
				w.SetFaults()
				h.Await(workers, map[string]instance.State{created: instance.Running, deleted: providertest.Deleted})
				time.Sleep(10 * time.Minute)
				assert.Equal(t, []string{created}, started(w.Server), fmt.Sprint(w.Started()))
				assert.Len(t, w.VMs(""), 1)
				assert.Len(t, w.ISOs(), 1)
				assert.Len(t, w.Made(), 2)
			})
		})
	}
}

// TestARestartDuringAnOutage of one node: the next leader knows the instances there from the
// records, and the tags say which machines they have. It creates and deletes other instances
// meanwhile. Without the tag, as earlier versions have left it, no instance is missing either.
func TestARestartDuringAnOutage(t *testing.T) {
	for _, tagged := range []bool{true, false} {
		t.Run(fmt.Sprintf("with the tag: %t", tagged), func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				h := w.startProvider()
				w.SetLoad("pve1", 60<<30, 1)
				id := h.MustRun(newSpec(t))
				w.SetLoad("pve1", 0, 0)
				vm, _ := h.Get(id)
				if !tagged {
					w.Set(w.vmid(id), "tags", strings.Join(tagsOf(testShard), ";"))
				}
				h.Stop()
				node, _ := w.Status(w.vmid(id))
				require.NotEqual(t, "pve1", node, "it has the template")
				w.SetOnline(node, false)
				time.Sleep(10 * time.Minute)
				h = w.startProvider()
				h.Provider.(provider.Expecter).Expect([]instance.VM{vm})
				other := h.MustRun(newSpec(t))
				time.Sleep(30 * time.Minute)
				assert.Equal(t, map[string]instance.State{id: instance.Running, other: instance.Running}, h.States(workers))
				got, _ := h.Get(id)
				assert.Equal(t, vm.ProviderID, got.ProviderID)
				if tagged {
					errs := h.ExpectFailures(1, workers, id)
					require.ErrorContains(t, errs[0], "virtual machine 10000 on node "+node+" cannot be read: the node is offline")
					h.MustDelete(other)
					h.Await(workers, map[string]instance.State{other: providertest.Deleted})
				}
				w.SetOnline(node, true)
				time.Sleep(10 * time.Minute)
				got, known := h.Get(id)
				assert.True(t, known)
				assert.True(t, vm.Equal(got), "want %v, got %v", vm, got)
				h.MustDelete(id)
				h.Await(workers, map[string]instance.State{id: providertest.Deleted})
				assert.Empty(t, h.Failures)
			})
		})
	}
}

// TestACloneThatTakesLong, longer than a nonce is valid: the machine starts with the userdata
// of a later request, also in a process that has found the record of its instance.
func TestACloneThatTakesLong(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.CloneTime = 7 * time.Minute
		h := w.startProvider()
		spec := request(t).Spec
		spec.CreatedAt = time.Now().Add(-time.Minute)
		requested, requests := time.Now(), 0
		for vm, known := h.Get(spec.ID); vm.State != instance.Running; vm, known = h.Get(spec.ID) {
			if !known {
				requested, requests = time.Now(), requests+1
				spec.Userdata = fmt.Appendf(nil, "nonce %d of %s", requests, spec.ID)
				h.MustCreate(spec)
			}
			<-h.Changes
		}
		require.Len(t, w.Started(), 1)
		assert.Contains(t, string(w.Started()[0].Userdata), string(spec.Userdata))
		if age := time.Since(requested); age > 3*time.Minute {
			t.Errorf("the userdata is %v old", age)
		}
		assert.Len(t, w.Made(), 1)
		assert.Empty(t, h.Failures, "failures")
	})
}

// TestBadDays: one group lacks a privilege on its template. No healthy machine is deleted, and the
// launches of other groups do not wait.
func TestBadDays(t *testing.T) {
	s := newCluster()
	s.AddTemplate(9001, "pve1", "windows", "ceph", 4)
	inBubble(t, s, func(t *testing.T, w *world) {
		refused := newSpec(t)
		refused.Group.Group, refused.Args = "refused", map[string]any{"template": "windows"}
		made := 0
		cloudtest.BadDay{
			Start: w.startProvider, Refused: refused, Other: newSpec(t),
			Begin: func() {
				made = len(w.Made())
				w.Grant("/vms", "VM.Clone", false)
				w.Grant("/vms/9000", "VM.Clone", true)
			},
			Terminations: func() int { return len(w.Made()) - len(w.VMs("")) },
		}.Test(t)
		assert.Greater(t, len(w.Made()), made)
	})
}

// TestAHostRestarts with 30 machines: while it is off they keep their state, and until it has
// started them one after the other, they are stopped and may return. Nothing is terminated, and a
// machine of another host is launched meanwhile.
func TestAHostRestarts(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetLoad("pve1", 60<<30, 1)
		running := map[string]instance.State{}
		var vmids []int
		for range 30 {
			id := h.MustRun(newSpec(t))
			running[id] = instance.Running
			vmids = append(vmids, w.vmid(id))
			node, _ := w.Status(w.vmid(id))
			require.Equal(t, "pve2", node)
			h.DrainChanges()
		}
		w.SetLoad("pve1", 0, 0)
		time.Sleep(time.Minute)
		w.Calls()

		w.SetOnline("pve2", false)
		time.Sleep(3 * time.Minute)
		assert.Equal(t, running, h.States(workers), "while the host is off")
		for _, vmid := range vmids {
			w.SetStatus(vmid, "stopped")
		}
		w.SetOnline("pve2", true)
		for n, vmid := range vmids {
			time.Sleep(10 * time.Second)
			for _, vm := range h.List(workers) {
				switch vm.State {
				case instance.Running:
				case instance.Stopped:
					assert.True(t, vm.MayReturn, "instance %s is stopped for good: %s", vm.ID, vm.Reason)
				default:
					t.Errorf("instance %s is %v: %s", vm.ID, vm.State, vm.Reason)
				}
			}
			if n == 15 {
				other := newSpec(t)
				other.Group.Group = "other"
				began := time.Now()
				h.MustRun(other)
				assert.Less(t, time.Since(began), time.Minute)
			}
			w.SetStatus(vmid, "running")
		}
		time.Sleep(time.Minute)
		assert.Equal(t, running, h.States(workers), "after the restart")
		for call, count := range w.Calls() {
			if strings.HasPrefix(call, "DELETE") || strings.HasSuffix(call, "/status/stop") {
				t.Errorf("%d calls %s", count, call)
			}
		}
		assert.Empty(t, h.Failures)
	})
}

// TestMaintenanceOfAHost: a machine without its userdata is migrated, keeps its state and its provider
// id, and does not depend on the host that it has left. It is deleted where it is.
func TestMaintenanceOfAHost(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.SyncDelay = 20 * time.Second
		h := w.startProvider()
		id := h.MustRun(newSpec(t))
		vmid := w.vmid(id)
		from, _ := w.Status(vmid)
		to := map[string]string{"pve1": "pve2", "pve2": "pve1"}[from]
		require.ErrorContains(t, w.Migrate(vmid, to), "local cdrom image")
		h.Provider.(provider.UserdataRemover).RemoveUserdata(id)
		time.Sleep(time.Minute)
		before, _ := h.Get(id)
		w.Calls()

		unchanged := func(during string, d time.Duration) {
			t.Helper()
			for range d / time.Second {
				time.Sleep(time.Second)
				require.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers), during)
				vm, _ := h.Get(id)
				require.Equal(t, before.ProviderID, vm.ProviderID, during)
				h.DrainChanges()
			}
		}
		require.NoError(t, w.Migrate(vmid, to))
		unchanged("after the migration", 3*time.Minute)
		w.SetOnline(from, false)
		unchanged("while the other host is off", 10*time.Minute)
		w.SetOnline(from, true)
		require.NoError(t, w.Migrate(vmid, from))
		unchanged("after the way back", 3*time.Minute)
		for call := range w.Calls() {
			assert.True(t, strings.HasPrefix(call, "GET "), "call %s", call)
		}
		assert.Empty(t, h.Failures)
		h.MustDelete(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Empty(t, w.VMs(""))
		assert.Empty(t, w.Disks())
	})
}

// TestANewLeaderOnABadDay: a node is offline, and a user has edited the notes of a machine on the
// other node. The next leader serves the rest of the shard and terminates neither.
func TestANewLeaderOnABadDay(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetLoad("pve1", 60<<30, 1)
		offline := h.MustRun(newSpec(t))
		w.SetLoad("pve1", 0, 0)
		w.SetLoad("pve2", 60<<30, 1)
		time.Sleep(time.Minute)
		edited := h.MustRun(newSpec(t))
		var records []instance.VM
		for _, id := range []string{offline, edited} {
			vm, _ := h.Get(id)
			records = append(records, vm)
		}
		h.Stop()
		w.Set(w.vmid(edited), "description", "rack 4")
		w.SetOnline("pve2", false)
		time.Sleep(10 * time.Minute)
		h = w.startProvider()
		h.Provider.(provider.Expecter).Expect(records)
		served := h.MustRun(newSpec(t))
		h.MustDelete(served)
		h.Await(workers, map[string]instance.State{served: providertest.Deleted})
		time.Sleep(30 * time.Minute)
		assert.Equal(t, map[string]instance.State{offline: instance.Running, edited: instance.Running}, h.States(workers))
		assert.Len(t, w.VMs(""), 2, "virtual machines")
		reported := map[string]bool{}
		for len(h.Failures) > 0 {
			reported[(<-h.Failures).ID] = true
		}
		assert.Equal(t, map[string]bool{offline: true, edited: true}, reported)
	})
}
