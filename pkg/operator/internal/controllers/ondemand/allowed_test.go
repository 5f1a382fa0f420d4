// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Otherwise, the right to create Pods in one namespace would be the right to create machines
// of every group.
func TestPodsMayRequestMachinesInSomeNamespacesAndOfSomeGroupsOnly(t *testing.T) {
	creates := []string{createsNstanceMachine, createsMachine}
	for name, test := range map[string]struct {
		namespaces, groups sets.Set[string]
		want               []string
		event              string
	}{
		"everywhere":           {want: creates},
		"in this namespace":    {namespaces: sets.New("team", "other"), want: creates},
		"of this group":        {groups: sets.New("gpu"), want: creates},
		"in another namespace": {namespaces: sets.New("other"), event: `Warning OnDemandNotAllowed the Pods of namespace "team" may not request machines`},
		"of another group":     {groups: sets.New("cpu"), event: `Warning OnDemandNotAllowed Pods may not request machines of group "gpu"`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod("requesting", "gpu")
			h := newHarness(t, 0, newShards("gpu", "cpu"), pod)
			h.controller.allowed = allowed{namespaces: test.namespaces, groups: test.groups}
			h.expect(pod, test.want...)
			h.expect(pod)
			if test.event == "" {
				h.ExpectEvents()
			} else {
				h.ExpectEvents(test.event)
			}
		})
	}
}

// A change of the flags deletes no machine.
func TestAMachineThatIsNotAllowedAnyMoreStays(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.expect(pod, createsNstanceMachine, createsMachine)
	h.controller.allowed = allowed{namespaces: sets.New("other")}
	h.expect(pod)
	h.ExpectEvents()
}
