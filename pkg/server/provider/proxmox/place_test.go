// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// TestPlacement: the node with the least part of its memory in use, and of equal ones that
// with the least part of its processors.
func TestPlacement(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(*pvetest.Server)
		want    string
	}{
		{"less memory in use", func(s *pvetest.Server) { s.SetLoad("pve1", 10<<30, 0) }, "pve2"},
		{"less of its memory in use", func(s *pvetest.Server) {
			s.SetLoad("pve1", 10<<30, 0)
			s.SetLoad("pve2", 8<<30, 0)
			s.SetMemory("pve2", 16<<30)
		}, "pve1"},
		{"less of its processors in use", func(s *pvetest.Server) { s.SetLoad("pve1", 0, 0.5) }, "pve2"},
		{"the other is offline", func(s *pvetest.Server) {
			s.SetLoad("pve1", 10<<30, 0)
			s.SetOnline("pve2", false)
		}, "pve1"},
		{"the other is not configured", func(s *pvetest.Server) { s.SetLoad("pve1", 10<<30, 0); s.SetLoad("pve2", 10<<30, 0) }, "pve1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := pvetest.New("pve1", "pve2", "pve3")
			s.AddTemplate(9000, "pve1", "debian", "ceph", 4)
			inBubble(t, s, func(t *testing.T, w *world) {
				tc.prepare(w.Server)
				r := request(t)
				w.launch(r)
				node, _ := w.Status(w.vmid(r.ID))
				assert.Equal(t, tc.want, node)
			})
		})
	}
}

// TestMachinesAreSpread although the nodes report their load late.
func TestMachinesAreSpread(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.ReportInterval = time.Hour
		w.list() // the first report
		var running sync.WaitGroup
		for range 4 {
			r := request(t)
			r.Type = largeType
			running.Go(func() { w.launch(r) })
		}
		running.Wait()
		count := map[string]int{}
		for _, made := range w.Made() {
			count[made.Node]++
		}
		assert.Equal(t, map[string]int{"pve1": 2, "pve2": 2}, count)
	})
}

// TestMemoryThatIsPromised: idle virtual machines use little, and may use all that they were
// promised. What a file system uses for its cache does not count.
func TestMemoryThatIsPromised(t *testing.T) {
	for _, tc := range []struct {
		commit int32
		want   int
	}{{100, 4}, {90, 3}, {150, 6}} {
		t.Run(fmt.Sprint(tc.commit), func(t *testing.T) {
			s := pvetest.New("pve1")
			s.AddTemplate(9000, "pve1", "debian", "ceph", 4)
			s.Idle = true
			inBubble(t, s, func(t *testing.T, w *world) {
				w.options.Nodes, w.options.MemoryCommit = []string{"pve1"}, tc.commit
				w.SetMemory("pve1", 16<<30)
				w.SetLoad("pve1", 15<<30, 0) // the cache
				for range tc.want {
					r := request(t)
					r.Type = largeType
					_, err := w.api.Launch(t.Context(), r)
					require.NoError(t, err)
					time.Sleep(w.ReportInterval)
				}
				// Machines that the node has yet to start again keep their memory.
				w.SetStatus(w.VMs("")[0], "stopped")
				time.Sleep(w.ReportInterval)
				r := request(t)
				r.Type = largeType
				_, err := w.newAPI(testShard).Launch(t.Context(), r)
				_, noCapacity := provider.AsCapacityError(err)
				assert.True(t, noCapacity, "%v", err)
				assert.Len(t, w.VMs(""), tc.want)
			})
		})
	}
}

// TestATemplateOnALocalStorage is cloned on its own node. Each node may have its own of the
// same name.
func TestATemplateOnALocalStorage(t *testing.T) {
	s := pvetest.New("pve1", "pve2")
	s.AddTemplate(9000, "pve1", "debian", "local", 4)
	inBubble(t, s, func(t *testing.T, w *world) {
		w.options.Subnets["subnet"] = Subnet{Bridge: "vmbr0", Storage: "local"}
		w.SetLoad("pve1", 10<<30, 0)
		r := request(t)
		w.launch(r)
		assert.Equal(t, "pve1", w.Made()[0].Node)
		w.AddTemplate(9001, "pve2", "debian", "local", 4)
		time.Sleep(w.ReportInterval)
		r = request(t)
		w.launch(r)
		assert.Equal(t, "pve2", w.Made()[1].Node)
		assert.Empty(t, w.Conflicts())
	})
}

// TestATemplateWithALocalDisk is cloned on its own node, even to a shared storage.
func TestATemplateWithALocalDisk(t *testing.T) {
	for _, local := range []string{"scsi0", "virtio1", "efidisk0", "tpmstate0"} {
		t.Run(local, func(t *testing.T) {
			s := pvetest.New("pve1", "pve2")
			set := s.AddTemplate(9000, "pve1", "debian", "ceph", 4)
			set(local, "local:base-9000-disk-1,size=4M")
			inBubble(t, s, func(t *testing.T, w *world) {
				w.SetLoad("pve1", 10<<30, 0)
				w.launch(request(t))
				assert.Equal(t, "pve1", w.Made()[0].Node)
			})
		})
	}
}

// TestLinkedClones have no storage of their own.
func TestLinkedClones(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.options.FullClone = false
		w.options.Subnets["subnet"] = Subnet{Bridge: "vmbr0"}
		r := request(t)
		w.launch(r)
		assert.Empty(t, w.Disks())
		assert.True(t, strings.HasPrefix(w.Config(w.vmid(r.ID))["scsi0"], "ceph:"))

		// Their storage is known only from the template, so the first launch reports this.
		w.Grant("/storage", "Datastore.AllocateSpace", false)
		_, err := w.api.Launch(t.Context(), request(t))
		require.ErrorAs(t, err, new(*cloud.Rejection))
		assert.ErrorContains(t, err, "/storage/ceph, Datastore.AllocateSpace")
	})
}
