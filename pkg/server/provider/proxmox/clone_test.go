// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// efiDisk is the disk of a template for the variables of its firmware, in addition to the
// boot disk.
const efiDisk = "ceph:base-9000-disk-1,efitype=4m,size=528K"

// TestATemplateWithTwoDisks: after the first one is cloned, the virtual machine has its name
// and notes. It is neither a machine nor configured before the second one is.
func TestATemplateWithTwoDisks(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.Set(9000, "efidisk0", efiDisk)
		w.CloneTime = 3 * time.Minute
		first, second := request(t), request(t)
		for range 50 {
			for _, r := range []cloud.Request{first, second} {
				if _, err := w.api.Launch(t.Context(), r); err != nil {
					require.ErrorIs(t, err, cloud.ErrInProgress)
				}
			}
			assert.Subset(t, started(w.Server), slices.Collect(maps.Keys(w.list())))
			time.Sleep(time.Second)
		}
		assert.ElementsMatch(t, []string{first.ID, second.ID}, started(w.Server))
		assert.Len(t, w.Made(), 2)
		assert.Zero(t, w.Conflicts(), "clones at once")
	})
}

// TestACloneWithANameWhoseProcessWasKilled is awaited by the next process.
func TestACloneWithANameWhoseProcessWasKilled(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.Set(9000, "efidisk0", efiDisk)
		w.CloneTime = 2 * time.Minute
		r := request(t)
		w.interrupt(r, 10*time.Second)
		time.Sleep(80 * time.Second)
		require.Equal(t, []int{10000}, w.VMs(r.ID))
		assert.Empty(t, w.list())
		_, _, err := w.api.Find(t.Context(), r.ID)
		require.ErrorContains(t, err, "10000 on node pve1")
		require.Len(t, w.api.Terminate(t.Context(), []cloud.VM{{ID: r.ID}}), 1)
		_, err = w.api.Launch(t.Context(), r)
		require.ErrorIs(t, err, cloud.ErrInProgress)
		time.Sleep(time.Minute)
		w.api = w.newAPI(testShard)
		assert.Equal(t, instance.Failed, w.list()[r.ID].State)
		w.launch(r)
		assert.Equal(t, []int{10000}, w.VMs(""))
	})
}

// TestACloneWithANameOfANodeThatFailed stays locked. It is no machine.
func TestACloneWithANameOfANodeThatFailed(t *testing.T) {
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.Set(9000, "efidisk0", efiDisk)
		w.CloneTime = 2 * time.Minute
		r := request(t)
		w.SetLoad("pve2", 60<<30, 1) // so that it stays on the node of the template
		w.interrupt(r, 10*time.Second)
		time.Sleep(80 * time.Second)
		require.Equal(t, []int{10000}, w.VMs(r.ID))
		w.SetOnline("pve1", false)
		_, _, err := w.api.Find(t.Context(), r.ID)
		require.ErrorContains(t, err, "10000 on node pve1")
		w.SetOnline("pve1", true)
		_, found, err := w.api.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.False(t, found)
		assert.Empty(t, w.list())
		w.launch(r)
		assert.Equal(t, []int{10000, 10001}, w.VMs(r.ID))
		assert.Len(t, w.list(), 1)
	})
}
