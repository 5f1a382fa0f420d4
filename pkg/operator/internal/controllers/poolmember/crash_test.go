// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// crash stops the process at one of its writes: later requests are not carried out. The
// zero value never stops it.
type crash struct {
	// at is the number of the write, from 1 on. With late it is carried out, and the
	// response is lost.
	at   int
	late bool

	writes int
}

var errCrashed = errors.New("the process has stopped")

// write counts one more. An error means that the response does not arrive, and lost
// that it is carried out nevertheless.
func (c *crash) write() (lost bool, err error) {
	c.writes++
	if c.at == 0 || c.writes < c.at {
		return false, nil
	}
	return c.late && c.writes == c.at, errCrashed
}

// After every write that is the last of a process, the next process has the same result.
func TestCrashAtEachWrite(t *testing.T) {
	tests := map[string]struct {
		pool            *v1beta1.NstanceMachinePool
		nstanceMachines []string
		// deletingMachines and deletingNstanceMachines are being deleted finally, and writes is
		// the number of writes without a crash.
		deletingMachines, deletingNstanceMachines []string
		writes                                    int
	}{
		"a pool": {
			pool:             newPool("a", "b"),
			nstanceMachines:  []string{"i-1", "i-2", "i-3", "i-4"},
			deletingMachines: []string{"i-2", "i-9"},
			writes:           5,
		},
		"a pool in deletion": {
			pool:                    controllertest.Deleting(newPool("a", "b")),
			nstanceMachines:         []string{"i-2", "i-4"},
			deletingMachines:        []string{"i-2", "i-9"},
			deletingNstanceMachines: []string{"i-4"},
			writes:                  3,
		},
	}
	for name, test := range tests {
		for _, late := range []bool{false, true} {
			for at := range test.writes + 1 {
				t.Run(fmt.Sprintf("%s, write %d, late %t", name, at, late), func(t *testing.T) {
					pool := test.pool.DeepCopy()
					h := newHarness(t, byShard{"a": running("i-1", "i-2", "i-3"), "b": running("i-4")},
						pool, newShardGroup(pool, "a", "i-2"), newShardGroup(pool, "b"), stored("i-2"))
					if deleting(pool) {
						require.NoError(h.T, h.Tracker().Add(stored("i-4")))
						h.Put(h.Informers.MachinePools, controllertest.Deleting(newMachinePool()))
						h.restart()
					}
					h.addMachines(newMachine("i-2"), newMachine("i-9"))
					h.crash = crash{at: at, late: late}
					quiet, carriedOut := 0, 0
					for quiet < 4 {
						h.show()
						writes, _, err := h.sync()
						if err != nil && !strings.Contains(err.Error(), errCrashed.Error()) {
							t.Fatal(err)
						}
						quiet++
						if len(writes) > 0 {
							quiet = 0
						}
						if h.crash.at > 0 && h.crash.writes >= h.crash.at {
							carriedOut += h.crash.at - 1
							if late {
								carriedOut++
							}
							h.crash = crash{}
							h.restart()
							quiet = 0
						}
						h.FakeClock.SetTime(h.FakeClock.Now().Add(orphanGrace / 2))
					}
					carriedOut += h.crash.writes

					// A creation whose response was lost is seen by the next process. So is all
					// else that was carried out: nothing is done twice.
					if carriedOut != test.writes {
						t.Errorf("%d writes were carried out, want %d", carriedOut, test.writes)
					}
					list, err := h.InfrastructureV1beta1().NstanceMachines(controllertest.Namespace).List(t.Context(), metav1.ListOptions{})
					require.NoError(h.T, err)
					var nstanceMachines, deletingNstanceMachines, deletingMachines []string
					for _, nstanceMachine := range list.Items {
						nstanceMachines = append(nstanceMachines, nstanceMachine.Name)
						if deleting(&nstanceMachine) {
							deletingNstanceMachines = append(deletingNstanceMachines, nstanceMachine.Name)
						}
					}
					for _, id := range slices.Sorted(maps.Keys(h.machines)) {
						if deleting(h.machines[id]) {
							deletingMachines = append(deletingMachines, id)
						}
					}
					slices.Sort(nstanceMachines)
					if !slices.Equal(nstanceMachines, test.nstanceMachines) || !slices.Equal(deletingNstanceMachines, test.deletingNstanceMachines) || !slices.Equal(deletingMachines, test.deletingMachines) {
						t.Errorf("NstanceMachines %v, of which %v are being deleted; Machines that are being deleted: %v", nstanceMachines, deletingNstanceMachines, deletingMachines)
					}
					// A process that is killed before the response to a deletion records no event.
					recorded := h.Events()
					for _, event := range recorded {
						assert.Contains(t, event, "Normal DeletingMachine ")
					}
					assert.Contains(t, []int{len(deletingMachines), len(deletingMachines) - 1}, len(recorded), "events: %q", recorded)
				})
			}
		}
	}
}

// A new process has not seen when a Machine became an orphan.
func TestOrphanGraceRestartsAfterACrash(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace - time.Second))
	h.restart()
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace))
	h.expect()
	h.FakeClock.SetTime(start.Add(2*orphanGrace - time.Second))
	h.expect("delete machines i-1")
}
