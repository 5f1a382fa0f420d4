// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// interrupt begins a launch whose process is killed after some time.
func (w *world) interrupt(r cloud.Request, after time.Duration) {
	w.t.Helper()
	w.api.timeout = after
	_, err := w.api.Launch(w.t.Context(), r)
	require.ErrorIs(w.t, err, cloud.ErrInProgress)
	w.api = w.newAPI(testShard)
}

// TestACloneWhoseProcessWasKilled has no name yet: until it has one, no process knows that
// there is no machine of its instance. Its tags are missing, but its notes are not.
func TestACloneWhoseProcessWasKilled(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.CloneTime = time.Minute
		r := request(t)
		w.interrupt(r, 10*time.Second)
		time.Sleep(20 * time.Second)
		assert.Empty(t, w.list())
		_, _, err := w.api.Find(t.Context(), r.ID)
		require.ErrorContains(t, err, "10000 on node pve1")
		room, err := w.api.Room(t.Context(), "two")
		require.NoError(t, err)
		assert.Equal(t, 1, room, "it may be in any subnet")

		// The list of the cluster shows the name late, the configuration does not.
		w.ReportInterval = time.Hour
		time.Sleep(w.CloneTime)
		m, found, err := w.api.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, instance.Failed, m.State)
		assert.Equal(t, "the virtual machine was cloned and never started", m.Reason)
		assert.Equal(t, workers, m.Group)
		assert.Contains(t, w.list(), r.ID)
		other := w.newAPI(provider.Shard{ClusterID: "test", ID: "b"})
		list, err := other.List(t.Context())
		require.NoError(t, err)
		assert.Empty(t, list, "machines of another shard")
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Empty(t, w.VMs(""))
		assert.Empty(t, w.Disks())
	})
}

// TestACloneOfANodeThatFailed never gets a name. It is no machine, and does not keep the
// others from being looked up.
func TestACloneOfANodeThatFailed(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.CloneTime = time.Minute
		r := request(t)
		w.SetLoad("pve2", 60<<30, 1) // so that it stays on the node of the template
		w.interrupt(r, 10*time.Second)
		w.SetOnline("pve1", false)
		_, _, err := w.api.Find(t.Context(), r.ID)
		require.ErrorContains(t, err, "10000 on node pve1")
		w.SetOnline("pve1", true)
		_, found, err := w.api.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.False(t, found)
		assert.Empty(t, w.list())
		// The same process begins again, with another VMID.
		w.launch(r)
		assert.Equal(t, 10001, w.vmid(r.ID))
	})
}

// TestANodeThatFails: its machines are neither missing nor stopped, nor do they keep the
// others from being listed.
func TestANodeThatFails(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		first, second := request(t), request(t)
		w.launch(first)
		w.SetLoad("pve1", 60<<30, 1)
		w.launch(second)
		require.Equal(t, []string{"pve1", "pve2"}, []string{w.Made()[0].Node, w.Made()[1].Node})
		time.Sleep(w.ReportInterval)
		before := w.list()
		require.Len(t, before, 2)
		w.SetOnline("pve2", false)
		for range 12 {
			assert.Equal(t, before, w.list())
			m, found, err := w.api.Find(t.Context(), second.ID)
			require.NoError(t, err)
			assert.True(t, found)
			assert.Equal(t, instance.Running, m.State)
			time.Sleep(time.Minute) // the reports of the node are dropped after 5
		}
		// A termination there fails, and does not count as successful.
		errs := w.api.Terminate(t.Context(), []cloud.VM{before[first.ID], before[second.ID]})
		require.Len(t, errs, 1)
		require.Error(t, errs[second.ID])
		assert.Empty(t, w.VMs(first.ID))

		// A process that was started since knows the instance from the tags, and not its group.
		w.api = w.newAPI(testShard)
		const reason = "the configuration of virtual machine 10001 on node pve2 cannot be read: the node is offline"
		want := cloud.VM{ID: second.ID, ProviderID: before[second.ID].ProviderID, State: instance.Running, Unidentified: reason}
		assert.Equal(t, map[string]cloud.VM{second.ID: want}, w.list())
		m, found, err := w.api.Find(t.Context(), second.ID)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, want, m)
		_, found, err = w.api.Find(t.Context(), first.ID)
		require.NoError(t, err)
		assert.False(t, found, "an instance that has no machine")
		errs = w.api.Terminate(t.Context(), []cloud.VM{want})
		require.ErrorContains(t, errs[second.ID], reason)

		// Without that tag the machine may be of any instance, so none is missing.
		w.Set(10001, "tags", strings.Join(tagsOf(testShard), ";"))
		assert.Empty(t, w.list())
		for _, id := range []string{first.ID, second.ID} {
			_, _, err = w.api.Find(t.Context(), id)
			require.ErrorContains(t, err, "10001 on node pve2")
		}
		w.SetOnline("pve2", true)
		assert.Len(t, w.list(), 1)
	})
}

// TestAClusterWithoutQuorum does not know what exists.
func TestAClusterWithoutQuorum(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		m := w.launch(r)
		w.SetQuorum(false)
		_, err := w.api.List(t.Context())
		require.ErrorContains(t, err, "no quorum")
		_, _, err = w.api.Find(t.Context(), "knd06bgm7733st2576nx5jht4ecj")
		require.ErrorContains(t, err, "no quorum")
		require.Len(t, w.api.Terminate(t.Context(), []cloud.VM{m}), 1)
		_, err = w.api.Launch(t.Context(), request(t))
		require.Error(t, err)
		assert.NotErrorAs(t, err, new(*cloud.Rejection))
		w.SetQuorum(true)
		assert.Contains(t, w.list(), r.ID)
	})
}

// TestATokenThatMayNotSeeMachines gets empty lists, which mean nothing.
func TestATokenThatMayNotSeeMachines(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		w.list()
		w.Grant("/vms", "VM.Audit", false)
		assert.Empty(t, w.list())
		_, _, err := w.api.Find(t.Context(), r.ID)
		require.ErrorContains(t, err, "lacks VM.Audit on /vms")
	})
}

// TestPrivileges: missing privileges are named before the first change.
func TestPrivileges(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.Grant("/vms", "VM.Clone", false)
		w.Grant("/", "Sys.Audit", false)
		w.Grant("/storage", "Datastore.AllocateTemplate", false)
		w.Grant("/sdn/zones", "SDN.Use", false)
		w.Grant("/sdn/zones/localnetwork/vmbr0", "SDN.Use", true)
		_, err := w.api.List(t.Context())
		require.EqualError(t, err, "the API token lacks privileges: Sys.Audit on /; VM.Clone on /vms; "+
			"Datastore.AllocateTemplate on /storage/local; SDN.Use on /sdn/zones/localnetwork/vmbr9 or /sdn/zones")
		for path, name := range map[string]string{
			"/": "Sys.Audit", "/vms": "VM.Clone", "/storage/local": "Datastore.AllocateTemplate", "/sdn/zones": "SDN.Use",
		} {
			w.Grant(path, name, true)
		}
		assert.Empty(t, w.list())
		calls := w.Calls()["GET access/permissions"]
		w.list()
		assert.Zero(t, w.Calls()["GET access/permissions"], "once is enough, there were %d", calls)
	})
}

// TestPrivilegesThatDoNotPropagate are enough on the paths that are used themselves, and not on the
// path above all virtual machines.
func TestPrivilegesThatDoNotPropagate(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		for _, moved := range []struct{ above, at, privilege string }{
			{"/", "/", "Sys.Audit"},
			{"/storage", "/storage/local", "Datastore.Allocate"},
			{"/storage", "/storage/local", "Datastore.AllocateTemplate"},
			{"/storage", "/storage/local", "Datastore.Audit"},
			{"/sdn/zones", "/sdn/zones/localnetwork/vmbr0", "SDN.Use"},
			{"/sdn/zones", "/sdn/zones/localnetwork/vmbr9", "SDN.Use"},
		} {
			w.Grant(moved.above, moved.privilege, false)
			w.GrantHere(moved.at, moved.privilege)
		}
		assert.Empty(t, w.list())
		w.launch(request(t))

		w.api = w.newAPI(testShard)
		w.Grant("/vms", "VM.Clone", false)
		w.GrantHere("/vms", "VM.Clone")
		_, err := w.api.List(t.Context())
		require.EqualError(t, err, "the API token lacks privileges: VM.Clone on /vms")
	})
}

// TestPrivilegesOnAPool are enough, beside that to clone the template.
func TestPrivilegesOnAPool(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.options.Pool = "nodes"
		for _, name := range vmPrivileges {
			w.Grant("/vms", name, false)
			w.Grant("/pool/nodes", name, true)
		}
		w.Grant("/vms/9000", "VM.Clone", true)
		w.Grant("/vms/9000", "VM.Audit", true)
		m := w.launch(request(t))
		assert.Len(t, w.list(), 1)
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		_, found, err := w.api.Find(t.Context(), m.ID)
		require.NoError(t, err)
		assert.False(t, found)
	})
}

// TestASingleNode is no member of a cluster and needs no quorum.
func TestASingleNode(t *testing.T) {
	s := pvetest.New("pve")
	s.Standalone = true
	s.AddTemplate(9000, "pve", "debian", "local", 4)
	inBubble(t, s, func(t *testing.T, w *world) {
		w.options.Nodes = []string{"pve"}
		w.options.Subnets["subnet"] = Subnet{Bridge: "vmbr0", Storage: "local"}
		m := w.launch(request(t))
		assert.Contains(t, w.list(), m.ID)
	})
}

// TestWhoseMachines: only virtual machines of the cluster and the shard are listed, even if
// users change tags and names, or make copies.
func TestWhoseMachines(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		mine := request(t)
		w.launch(mine)
		vmid := w.vmid(mine.ID)
		// The cluster of one has the name of the shard of the other.
		for _, shard := range []provider.Shard{{ClusterID: "a", ID: "test"}, {ClusterID: "test", ID: "b"}, {ClusterID: "other", ID: "a"}} {
			other := &world{t: t, Server: w.Server, options: w.options}
			other.api = other.newAPI(shard)
			r := request(t)
			other.launch(r)
			assert.Len(t, other.list(), 1)
		}
		w.CopyVM(vmid, 30000)
		w.AddVM(40000, "pve1", mine.ID, 0) // a name only
		w.AddVM(9500, "pve1", "nstance", 0)
		w.Set(9500, "tags", strings.Join(tagsOf(testShard), ";"))
		time.Sleep(w.ReportInterval)
		for _, api := range []*API{w.api, w.newAPI(testShard)} {
			w.api = api
			list := w.list()
			assert.Len(t, list, 1)
			assert.Contains(t, list, mine.ID)
		}
		// Another name is no other machine.
		w.Set(vmid, "name", "renamed")
		w.Set(vmid, "tags", "web nstance-shard-a,nstance nstance-cluster-test")
		time.Sleep(w.ReportInterval)
		w.api = w.newAPI(testShard)
		assert.Contains(t, w.list(), mine.ID)
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{{ID: mine.ID}}))
		assert.Equal(t, []int{30000}, w.VMs("Copy-of-VM-"+mine.ID))
		assert.Nil(t, w.Config(vmid))
		assert.NotNil(t, w.Config(40000))
	})
}

// TestNotesThatWereRemoved: of which group the instance is, nothing says.
func TestNotesThatWereRemoved(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		w.list()
		w.Set(w.vmid(r.ID), "description", "my notes")
		assert.Contains(t, w.list(), r.ID, "what was read once")
		w.api = w.newAPI(testShard)
		assert.Contains(t, w.list()[r.ID].Unidentified, "virtual machine 10000 has the tags of this shard")
	})
}

// TestStates: the node reports the state of a machine that does not seem to run.
func TestStates(t *testing.T) {
	for _, tc := range []struct {
		status string
		state  instance.State
		reason string
	}{
		{"running", instance.Running, ""},
		{"stopped", instance.Stopped, "the virtual machine is stopped"},
		{"shutdown", instance.Stopped, "the guest has shut down"},
		{"guest-panicked", instance.Failed, "the kernel of the guest has panicked"},
		{"internal-error", instance.Failed, "QEMU reports an internal error"},
		{"io-error", instance.Impaired, "QEMU reports the state io-error"},
		{"paused", instance.Impaired, "QEMU reports the state paused"},
		{"prelaunch", instance.Pending, ""},
	} {
		t.Run(tc.status, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				r := request(t)
				w.launch(r)
				w.SetStatus(w.vmid(r.ID), tc.status)
				time.Sleep(w.ReportInterval)
				m := w.list()[r.ID]
				assert.Equal(t, tc.state, m.State)
				assert.Equal(t, tc.reason, m.Reason)
			})
		})
	}
}

// TestAMachineThatWasJustStarted: the list of the cluster still shows it as stopped.
func TestAMachineThatWasJustStarted(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.CloneTime, w.ReportInterval = 9*time.Second, 10*time.Second
		r := request(t)
		w.launch(r)
		for range 30 {
			assert.Equal(t, instance.Running, w.list()[r.ID].State)
			time.Sleep(500 * time.Millisecond)
		}
	})
}

// TestFlags: what counts as true.
func TestFlags(t *testing.T) {
	for text, want := range map[string]bool{"1": true, `"1"`: true, "2": true, "true": true, "0": false, `"0"`: false, `""`: false, "null": false, "false": false} {
		f := flag(!want)
		require.NoError(t, f.UnmarshalJSON([]byte(text)), text)
		assert.Equal(t, flag(want), f, text)
	}
	require.EqualError(t, new(flag).UnmarshalJSON([]byte(`"online"`)), "online is no boolean")
}

// TestCallsOfAList do not grow with the machines that run.
func TestCallsOfAList(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		for range 10 {
			w.launch(request(t))
		}
		time.Sleep(w.ReportInterval)
		w.list()
		w.Calls()
		assert.Len(t, w.list(), 10)
		assert.Equal(t, map[string]int{"GET cluster/status": 1, "GET cluster/resources": 1}, w.Calls())
	})
}

// TestFindIsCertain: a process that does not know a machine yet neither leaves it out of its
// list nor misses it because its configuration cannot be read.
func TestFindIsCertain(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		time.Sleep(time.Minute)
		for _, status := range []int{0, 401, 403, 500, 503, 595, 596} {
			api := w.newAPI(testShard)
			w.SetFaults(&pvetest.Fault{Before: true, Call: "/config", Status: status, Message: "something is wrong"})
			list, err := api.List(t.Context())
			vm, found, findErr := api.Find(t.Context(), r.ID)
			if err == nil {
				// The node does not respond.
				require.Len(t, list, 1, "list, status %d", status)
				require.NoError(t, findErr)
				assert.True(t, found)
				assert.NotEmpty(t, vm.Unidentified)
				continue
			}
			require.Error(t, findErr, "find, status %d", status)
			assert.False(t, found)
		}
		w.SetFaults()
		_, found, err := w.newAPI(testShard).Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, found)
	})
}
