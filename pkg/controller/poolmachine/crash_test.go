// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// crash ends the process at one of its writes: nothing that it asks for after that
// is carried out. The zero value never does.
type crash struct {
	// at is the number of the write, from 1 on. With late it is carried out, and the
	// answer is lost.
	at   int
	late bool

	writes int
}

var errCrashed = errors.New("the process has ended")

// write counts one more. An error means that the answer does not arrive, and lost
// that it is carried out nevertheless.
func (c *crash) write() (lost bool, err error) {
	c.writes++
	if c.at == 0 || c.writes < c.at {
		return false, nil
	}
	return c.late && c.writes == c.at, errCrashed
}

// Whatever write is the last of a process, the next one comes to the same.
func TestCrashAtEachWrite(t *testing.T) {
	worlds := map[string]struct {
		pool    *v1beta1.NstanceMachinePool
		members []string
		// gone are the Machines and the members that are leaving at the end, and writes
		// how many it takes when nothing goes wrong.
		goneMachines, goneMembers []string
		writes                    int
	}{
		"a pool that lives": {
			pool:         newPool("a", "b"),
			members:      []string{"i-1", "i-2", "i-3", "i-4"},
			goneMachines: []string{"i-2", "i-9"},
			writes:       5,
		},
		"a pool that goes": {
			pool:         deleted(newPool("a", "b")),
			members:      []string{"i-2", "i-4"},
			goneMachines: []string{"i-2", "i-9"},
			goneMembers:  []string{"i-4"},
			writes:       3,
		},
	}
	for name, world := range worlds {
		for _, late := range []bool{false, true} {
			for at := range world.writes + 1 {
				t.Run(fmt.Sprintf("%s, write %d, late %t", name, at, late), func(t *testing.T) {
					pool := world.pool.DeepCopy()
					h := newHarness(t, shards{"a": lists("i-1", "i-2", "i-3"), "b": lists("i-4")},
						pool, newShardGroup(pool, "a", "i-2"), newShardGroup(pool, "b"), stored("i-2"))
					if leaving(pool) {
						h.noError(h.Tracker().Add(stored("i-4")))
						h.put(h.machinePoolCache, deleted(newMachinePool()))
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
						h.clock.SetTime(h.clock.Now().Add(orphanGrace / 2))
					}
					carriedOut += h.crash.writes

					// A creation whose answer was lost is seen by the next process. So is all
					// else that was carried out: nothing is done twice.
					if carriedOut != world.writes {
						t.Errorf("%d writes were carried out, want %d", carriedOut, world.writes)
					}
					list, err := h.InfrastructureV1beta1().NstanceMachines(namespace).List(t.Context(), metav1.ListOptions{})
					h.noError(err)
					var members, goneMembers, goneMachines []string
					for _, member := range list.Items {
						members = append(members, member.Name)
						if leaving(&member) {
							goneMembers = append(goneMembers, member.Name)
						}
					}
					for _, id := range slices.Sorted(maps.Keys(h.machines)) {
						if leaving(h.machines[id]) {
							goneMachines = append(goneMachines, id)
						}
					}
					slices.Sort(members)
					if !slices.Equal(members, world.members) || !slices.Equal(goneMembers, world.goneMembers) || !slices.Equal(goneMachines, world.goneMachines) {
						t.Errorf("members %v, of which %v go; Machines that go: %v", members, goneMembers, goneMachines)
					}
					h.expectEvents()
				})
			}
		}
	}
}

// No process has to have seen the beginning to bring something to its end.
func TestASightingBeginsAnewAfterACrash(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	h.clock.SetTime(start.Add(orphanGrace - time.Second))
	h.restart()
	h.expect()
	h.clock.SetTime(start.Add(orphanGrace))
	h.expect()
	h.clock.SetTime(start.Add(2*orphanGrace - time.Second))
	h.expect("delete machines i-1")
}
