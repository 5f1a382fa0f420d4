// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// TestLaunch: what a virtual machine is configured with, and that it has its userdata when
// it is started.
func TestLaunch(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		r := request(t)
		r.Origin = instance.Origin{OnDemand: true, IdempotencyKey: "any\ntext", InfraConfigHash: "abc"}
		r.Args = map[string]any{"disk_size": "20Gi"}
		m := w.launch(r)
		assert.Equal(t, cloud.VM{
			ID: r.ID, ProviderID: "proxmox:///zone/" + r.ID, Group: workers, Origin: r.Origin, Type: "small", State: instance.Running,
		}, m)
		vmid := w.vmid(r.ID)
		config := w.Config(vmid)
		notes := config["description"]
		delete(config, "description")
		assert.Equal(t, map[string]string{
			"name": r.ID, "tags": "nstance;nstance-cluster-test;nstance-shard-a;nstance-instance-" + r.ID, "sockets": "1", "cores": "2", "memory": "1024",
			"net0": "virtio,bridge=vmbr0", "ide2": "local:iso/nstance-" + r.ID + ".iso,media=cdrom", "onboot": "1", "protection": "0",
			"boot": "order=scsi0", "scsi0": "ceph:base-9000-disk-0,size=20480M",
		}, config)
		for _, want := range []string{r.ID, "default", "workers", "knd", r.CreatedAt.Format(time.RFC3339)} {
			assert.Contains(t, notes, want)
		}
		assert.NotContains(t, notes, "userdata of")
		require.Len(t, w.Started(), 1)
		assert.Contains(t, string(w.Started()[0].Userdata), "userdata of "+r.ID)
		assert.Equal(t, map[string]cloud.VM{r.ID: m}, w.list())
		// Another process finds it with all that a record needs.
		other, found, err := w.newAPI(testShard).Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, m, other)
	})
}

// TestVLAN: the tag of the subnet.
func TestVLAN(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		tag := int32(42)
		w.options.Subnets["subnet"] = Subnet{Bridge: "vmbr0", VLAN: &tag, Storage: "ceph"}
		r := request(t)
		w.launch(r)
		assert.Equal(t, "virtio,bridge=vmbr0,tag=42", w.Config(w.vmid(r.ID))["net0"])
	})
}

// TestTheDiskThatIsBootedIsEnlarged, whatever its name. No disk is made smaller.
func TestTheDiskThatIsBootedIsEnlarged(t *testing.T) {
	for _, tc := range []struct{ name, boot, size, want string }{
		{"virtio0", "order=ide2;virtio0;net0", "10Gi", "10240M"},
		{"sata1", "order=sata1", "10Gi", "10240M"},
		{"scsi0", "order=scsi0", "1Gi", "4G"},
		{"scsi0", "order=scsi0", "4Gi", "4G"},
	} {
		t.Run(tc.name+" "+tc.size, func(t *testing.T) {
			s := pvetest.New("pve1", "pve2")
			set := s.AddTemplate(9000, "pve1", "debian", "ceph", 4)
			set("scsi0", "")
			set("ide2", "none,media=cdrom")
			set(tc.name, "ceph:base-9000-disk-0,size=4G")
			set("boot", tc.boot)
			inBubble(t, s, func(t *testing.T, w *world) {
				r := request(t)
				r.Args = map[string]any{"disk_size": tc.size}
				w.launch(r)
				assert.Equal(t, "ceph:base-9000-disk-0,size="+tc.want, w.Config(w.vmid(r.ID))[tc.name])
			})
		})
	}
}

// TestVMIDs rise from 10000, and are not used again by the same process.
func TestVMIDs(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.AddVM(300, "pve1", "other", 0)
		first, second, third := request(t), request(t), request(t)
		m := w.launch(first)
		assert.Equal(t, 10000, w.vmid(first.ID))
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Empty(t, w.VMs(first.ID))
		w.launch(second)
		assert.Equal(t, 10001, w.vmid(second.ID))
		w.AddVM(20000, "pve1", "other", 0)
		w.launch(third)
		assert.Equal(t, 20001, w.vmid(third.ID))

		w.AddVM(lastVMID, "pve1", "other", 0)
		_, err := w.api.Launch(t.Context(), request(t))
		require.ErrorContains(t, err, "no VMID above 999999999")
	})
}

// TestAVMIDThatIsTaken is left to its owner: the list has not shown it yet.
func TestAVMIDThatIsTaken(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		for n := range 3 {
			w.AddVM(10000+n, "pve2", "other", time.Hour)
		}
		r := request(t)
		_, err := w.api.Launch(t.Context(), r)
		require.NoError(t, err)
		assert.Equal(t, 10003, w.vmid(r.ID))
		assert.Len(t, w.VMs("other"), 3)
		assert.Len(t, w.Made(), 1)
	})
}

// TestAVMIDThatIsTakenOnTheNodeOfTheTemplate is refused before the clone begins.
func TestAVMIDThatIsTakenOnTheNodeOfTheTemplate(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.AddVM(10000, "pve1", "other", time.Hour)
		r := request(t)
		_, err := w.api.Launch(t.Context(), r)
		require.NoError(t, err)
		assert.Equal(t, 10001, w.vmid(r.ID))
	})
}

// TestTagsThatTheTokenMayNotSet: the machine is launched without them, and found by its notes.
func TestTagsThatTheTokenMayNotSet(t *testing.T) {
	for _, access := range []string{"none", "existing"} {
		t.Run(access, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				w.SetTagAccess(access)
				r := request(t)
				m, err := w.api.Launch(t.Context(), r)
				require.NoError(t, err)
				config := w.Config(w.vmid(r.ID))
				assert.Equal(t, "golden", config["tags"], "the tags of the template")
				assert.Equal(t, "2", config["cores"])
				assert.Len(t, w.Made(), 1)
				time.Sleep(w.ReportInterval)
				assert.Equal(t, map[string]cloud.VM{r.ID: m}, w.list())
				w.api = w.newAPI(testShard)
				assert.Equal(t, map[string]cloud.VM{r.ID: m}, w.list())
				require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
				assert.Empty(t, w.VMs(""))
				assert.Empty(t, w.ISOs())
			})
		})
	}
}

// TestSeveralShardsClaimVMIDs at once: each machine has its own.
func TestSeveralShardsClaimVMIDs(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		var running sync.WaitGroup
		var want []string
		for n := range 4 {
			api := w.newAPI(provider.Shard{ClusterID: "test", ID: fmt.Sprint("shard-", n), Zone: "zone"})
			for range 2 {
				r := request(t)
				want = append(want, r.ID)
				running.Go(func() {
					for {
						if _, err := api.Launch(t.Context(), r); err == nil {
							return
						} else if !isInProgress(err) {
							assert.NoError(t, err)
							return
						}
						time.Sleep(time.Second)
					}
				})
			}
		}
		running.Wait()
		var made []string
		vmids := map[int]bool{}
		for _, machine := range w.Made() {
			made = append(made, machine.Name)
			vmids[machine.VMID] = true
		}
		assert.ElementsMatch(t, want, made, "machines")
		assert.Len(t, vmids, len(want), "VMIDs")
		assert.ElementsMatch(t, want, started(w.Server))
	})
}

// TestOneCloneAtATime of a template to a storage: the cluster would let them wait for locks
// until they fail.
func TestOneCloneAtATime(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.CloneTime = 20 * time.Second // longer than a call
		var running sync.WaitGroup
		var want []string
		for range 4 {
			r := request(t)
			want = append(want, r.ID)
			running.Go(func() { w.launch(r) })
		}
		running.Wait()
		assert.ElementsMatch(t, want, started(w.Server))
		assert.Zero(t, w.Conflicts(), "tasks that have failed because of a lock")
		assert.Equal(t, 4, w.Calls()["POST nodes/{node}/qemu/{vmid}/clone"], "clones")
	})
}

// lossyCalls are the calls of a launch that change something, by method and end of path.
var lossyCalls = []struct{ verb, suffix string }{
	{http.MethodPost, "/clone"}, {http.MethodPost, "/upload"}, {http.MethodPost, "/config"},
	{http.MethodPut, "/resize"}, {http.MethodPost, "/status/start"},
}

// TestALostResponseOfALaunch: the next call continues with the same virtual machine, whether
// or not the lost one had its effect.
func TestALostResponseOfALaunch(t *testing.T) {
	for _, call := range lossyCalls {
		for _, before := range []bool{false, true} {
			for _, slow := range []struct{ clone, task time.Duration }{
				{time.Second, 500 * time.Millisecond}, {40 * time.Second, 500 * time.Millisecond}, {time.Second, 3 * time.Second}, {time.Second, 20 * time.Second},
			} {
				t.Run(fmt.Sprintf("%s, without an effect %t, tasks take %v", call.suffix, before, slow), func(t *testing.T) {
					inBubble(t, newCluster(), func(t *testing.T, w *world) {
						w.CloneTime, w.TaskTime = slow.clone, slow.task
						w.SetFaults(&pvetest.Fault{Verb: call.verb, Call: call.suffix, Times: 2, Before: before})
						r := request(t)
						r.Args = map[string]any{"disk_size": "8Gi"}
						w.launchDespiteErrors(r)
						require.Len(t, w.Made(), 1, "virtual machines")
						assert.Len(t, w.VMs(""), 1)
						require.Len(t, w.Started(), 1, "starts")
						assert.Contains(t, string(w.Started()[0].Userdata), "userdata of "+r.ID)
						assert.True(t, hasTags(testShard, w.Config(w.vmid(r.ID))["tags"]))
					})
				})
			}
		}
	}
}

// launchDespiteErrors launches a machine with as many calls as that takes.
func (w *world) launchDespiteErrors(r cloud.Request) {
	w.t.Helper()
	for range 100 {
		_, err := w.api.Launch(w.t.Context(), r)
		if err == nil {
			return
		}
		assert.NotErrorAs(w.t, err, new(*cloud.Rejection))
		time.Sleep(time.Second)
	}
	w.t.Error("the machine was not launched")
}

// TestALostCloneThatIsMoved: the response of the clone is lost, and it ends on another node
// before the next call.
func TestALostCloneThatIsMoved(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.SetLoad("pve1", 60<<30, 0.9)
		w.SyncDelay = 20 * time.Second
		w.SetFaults(&pvetest.Fault{Verb: http.MethodPost, Call: "/clone", Times: 1})
		r := request(t)
		_, err := w.api.Launch(t.Context(), r)
		require.Error(t, err)
		time.Sleep(w.CloneTime + time.Millisecond)
		w.launchDespiteErrors(r)
		require.Len(t, w.Made(), 1)
		assert.Equal(t, "pve2", w.Made()[0].Node)
	})
}

// TestAMachineThatIsRemovedDuringItsLaunch: the next call clones the template again, and completes the
// clone from the beginning.
func TestAMachineThatIsRemovedDuringItsLaunch(t *testing.T) {
	uploaded := func(w *world, vmid int) bool { return len(w.ISOs()) == 1 && w.Config(vmid)["ide2"] == "" }
	for name, tc := range map[string]struct {
		clone     time.Duration
		isReached func(*world, int) bool
	}{
		"after the clone":         {time.Second, func(w *world, _ int) bool { return len(w.ISOs()) == 0 }},
		"after the upload":        {time.Second, uploaded},
		"after a list":            {time.Minute, uploaded},
		"after the configuration": {time.Second, func(w *world, vmid int) bool { return w.Config(vmid)["ide2"] != "" }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				w.CloneTime, w.TaskTime = tc.clone, 20*time.Second
				r := request(t)
				_, err := w.api.Launch(t.Context(), r)
				require.ErrorIs(t, err, cloud.ErrInProgress)
				time.Sleep(tc.clone) // no call waits for the end of a long clone
				for !tc.isReached(w, w.vmid(r.ID)) {
					_, err := w.api.Launch(t.Context(), r)
					require.ErrorIs(t, err, cloud.ErrInProgress)
				}
				w.Remove(w.vmid(r.ID))
				w.launchDespiteErrors(r)
				started := w.Started()[len(w.Started())-1]
				assert.Contains(t, string(started.Userdata), "userdata of "+r.ID)
				assert.Equal(t, w.vmid(r.ID), started.VMID)
				assert.True(t, hasTags(testShard, w.Config(started.VMID)["tags"]))
			})
		})
	}
}

// TestARejectionWithALateRemoval: a launch that was rejected does not go on when its virtual machine is not
// removed at once, also if the next request would not be rejected. The next launch begins again.
func TestARejectionWithALateRemoval(t *testing.T) {
	for name, fault := range map[string]*pvetest.Fault{
		"tasks take long":                         nil,
		"the image cannot be removed":             {Verb: http.MethodDelete, Call: ".iso", Times: 1, Before: true, Status: http.StatusServiceUnavailable},
		"the machine cannot be removed":           {Verb: http.MethodDelete, Call: "/qemu/10000", Times: 1, Before: true, Status: http.StatusServiceUnavailable},
		"the response to the removal is lost":     {Verb: http.MethodDelete, Call: "/qemu/10000", Times: 1},
		"the removal has an effect and no result": {Verb: http.MethodDelete, Call: "/qemu/10000", Times: 1, Status: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				r := request(t)
				r.Subnet = "off"
				if fault == nil {
					w.TaskTime = 20 * time.Second
				} else {
					w.SetFaults(fault)
				}
				var rejection *cloud.Rejection
				_, err := w.api.Launch(t.Context(), r)
				for errors.Is(err, cloud.ErrInProgress) {
					_, err = w.api.Launch(t.Context(), r)
				}
				require.Error(t, err)
				require.NotErrorAs(t, err, &rejection)
				assert.ErrorContains(t, err, "bridge 'vmbr9' does not exist")

				r.Subnet = "subnet"
				for range 10 {
					time.Sleep(time.Second)
					if _, err = w.api.Launch(t.Context(), r); errors.As(err, &rejection) {
						break
					}
				}
				require.ErrorAs(t, err, &rejection)
				assert.Equal(t, cloud.Scope{Subnet: "off"}, rejection.Scope)
				assert.Empty(t, w.VMs(r.ID))
				assert.Empty(t, w.ISOs())
				assert.Empty(t, w.Started())

				w.launchDespiteErrors(r)
				require.Len(t, w.Started(), 1, "starts")
				assert.Contains(t, string(w.Started()[0].Userdata), "userdata of "+r.ID)
				assert.Equal(t, "virtio,bridge=vmbr0", w.Config(w.vmid(r.ID))["net0"])
			})
		})
	}
}

// TestRejections: what is rejected has left nothing, and says what else would be.
func TestRejections(t *testing.T) {
	group := cloud.Scope{Group: workers}
	all := cloud.Scope{Group: workers, Type: "small", Subnet: "subnet"}
	for _, tc := range []struct {
		name, message string
		scope         cloud.Scope
		change        func(*world, *cloud.Request)
	}{
		{"no space", "No space left", cloud.Scope{Subnet: "full"}, func(_ *world, r *cloud.Request) { r.Subnet = "full" }},
		{"no bridge", "bridge 'vmbr9' does not exist", cloud.Scope{Subnet: "off"}, func(_ *world, r *cloud.Request) { r.Subnet = "off" }},
		{"no storage", "storage 'none' does not exist", cloud.Scope{Subnet: "subnet"}, func(w *world, _ *cloud.Request) {
			w.options.Subnets["subnet"] = Subnet{Bridge: "vmbr0", Storage: "none"}
			w.SetLoad("pve2", 63<<30, 1)
		}},
		{"no template", "has the template windows", group, func(_ *world, r *cloud.Request) { r.Args = map[string]any{"template": "windows"} }},
		{"an unknown argument", "args.tags", group, func(_ *world, r *cloud.Request) { r.Args = map[string]any{"tags": "x"} }},
		{"no memory", "no node has 4Gi of memory left that it may promise (memory_commit is 100%)", cloud.Scope{Type: "large"}, func(w *world, r *cloud.Request) {
			r.Type = largeType
			w.SetMemory("pve1", 3<<30)
			w.SetMemory("pve2", 3<<30)
		}},
		{"no memory when it starts", "Cannot allocate memory", cloud.Scope{Type: "small"}, func(w *world, _ *cloud.Request) { w.overcommit() }},
		{"no memory when it starts, and no log", "QEMU exited with code 1", all, func(w *world, _ *cloud.Request) {
			w.overcommit()
			w.SetFaults(&pvetest.Fault{Verb: http.MethodGet, Call: "/log", Before: true, Status: http.StatusInternalServerError, Message: "no log"})
		}},
		{"no privilege", "VM.Config.CDROM", cloud.Scope{}, func(w *world, _ *cloud.Request) { w.Grant("/vms", "VM.Config.CDROM", false) }},
		{"no privilege on the template", "/vms/9000, VM.Clone", group, func(w *world, _ *cloud.Request) { w.deny("/vms", "/vms/9000", "VM.Clone") }},
		{"no privilege on a network of the template", "/sdn/zones/localnetwork/vmbr1, SDN.Use", group, func(w *world, _ *cloud.Request) {
			w.Set(9000, "net1", "virtio,bridge=vmbr1")
			w.deny("/sdn/zones", "/sdn/zones/localnetwork/vmbr1", "SDN.Use")
		}},
		{"no privilege on the network of the subnet", "/sdn/zones/localnetwork/vmbr0, SDN.Use", cloud.Scope{Subnet: "subnet"}, func(w *world, _ *cloud.Request) {
			w.Grant("/sdn/zones", "SDN.Use", false)
		}},
		{"no privilege on the storage of the subnet", "/storage/ceph, Datastore.AllocateSpace", cloud.Scope{Subnet: "subnet"}, func(w *world, _ *cloud.Request) {
			w.Grant("/storage", "Datastore.AllocateSpace", false)
		}},
		{"no privilege on the storage of the userdata", "/storage/local, Datastore.AllocateTemplate", cloud.Scope{}, func(w *world, _ *cloud.Request) {
			w.Grant("/storage", "Datastore.AllocateTemplate", false)
		}},
		{"another refusal", "may not do that", group, func(w *world, _ *cloud.Request) {
			w.SetFaults(&pvetest.Fault{Verb: http.MethodPost, Call: "/clone", Before: true, Status: http.StatusForbidden, Message: "the token may not do that"})
		}},
		{"no space for a larger disk", "Insufficient free space", cloud.Scope{Subnet: "subnet"}, func(w *world, r *cloud.Request) {
			w.SetFree("ceph", 5<<30)
			r.Args = map[string]any{"disk_size": "8Gi"}
		}},
		{"a parameter", "Parameter verification failed", all, func(w *world, _ *cloud.Request) {
			w.options.Subnets["subnet"] = Subnet{Bridge: "vmbr0,x", Storage: "ceph"}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, newCluster(), func(t *testing.T, w *world) {
				r := request(t)
				tc.change(w, &r)
				_, err := w.api.Launch(t.Context(), r)
				var rejection *cloud.Rejection
				require.ErrorAs(t, err, &rejection)
				assert.ErrorContains(t, err, tc.message)
				assert.Equal(t, tc.scope, rejection.Scope)
				assert.Positive(t, rejection.RetryAfter)
				assert.Empty(t, w.VMs(""), "virtual machines")
				assert.Empty(t, w.ISOs(), "images")
				assert.Empty(t, w.Disks(), "disks")
				assert.Empty(t, w.api.launches)
				assert.Empty(t, w.api.cloning)
			})
		})
	}
}

// overcommit lets nodes promise more memory than they have.
func (w *world) overcommit() {
	w.options.MemoryCommit = 1000
	for _, node := range w.options.Nodes {
		w.SetMemory(node, 512<<20)
	}
}

// deny takes a privilege away on one path of those below another path.
func (w *world) deny(above, at, privilege string) {
	w.Grant(above, privilege, false)
	for _, other := range []string{"/vms/10000", "/sdn/zones/localnetwork/vmbr0"} {
		if other != at && strings.HasPrefix(other, above) {
			w.Grant(other, privilege, true)
		}
	}
}

// TestFaultsThatAreNoRejection are tried again.
func TestFaultsThatAreNoRejection(t *testing.T) {
	for _, tc := range []struct {
		status  int
		message string
	}{
		{500, "cluster not ready - no quorum?"}, {500, "can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout"},
		{401, "invalid token value!"}, {595, "No route to host"}, {596, ""}, {502, "Bad Gateway"}, {503, ""}, {500, ""},
	} {
		for _, call := range lossyCalls {
			t.Run(fmt.Sprint(tc.status, tc.message, call.suffix), func(t *testing.T) {
				inBubble(t, newCluster(), func(t *testing.T, w *world) {
					w.SetFaults(&pvetest.Fault{Verb: call.verb, Call: call.suffix, Times: 2, Before: true, Status: tc.status, Message: tc.message})
					r := request(t)
					r.Args = map[string]any{"disk_size": "8Gi"}
					w.launchDespiteErrors(r)
					assert.Len(t, w.Made(), 1)
					assert.Len(t, w.VMs(""), 1)
				})
			})
		}
	}
}

// TestALockThatIsTaken for a moment: the call waits for it.
func TestALockThatIsTaken(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		var faults []*pvetest.Fault
		for _, call := range lossyCalls {
			faults = append(faults, &pvetest.Fault{
				Verb: call.verb, Call: call.suffix, Times: 1, Before: true, Status: http.StatusInternalServerError,
				Message: "can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout",
			})
		}
		w.SetFaults(faults...)
		r := request(t)
		r.Args = map[string]any{"disk_size": "8Gi"}
		_, err := w.api.Launch(t.Context(), r)
		require.NoError(t, err)
	})
}

// TestThrottledCalls are reported as such.
func TestThrottledCalls(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.SetFaults(&pvetest.Fault{Status: http.StatusTooManyRequests, Before: true})
		_, err := w.api.Launch(t.Context(), request(t))
		require.ErrorIs(t, err, cloud.ErrThrottled)
		_, err = w.api.List(t.Context())
		require.ErrorIs(t, err, cloud.ErrThrottled)
	})
}
