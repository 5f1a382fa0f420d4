// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/providerid"
)

// hooks are annotations of a Machine by which another client delays its deletion
// (https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations). A shard has a deadline,
// so here they delay the drain no longer than rules do.
type hooks struct {
	// machine is the Machine of the instance.
	machine klog.ObjectRef
	// preDrain delays the evictions and the acknowledgement, preTerminate the acknowledgement.
	// Each is the first annotation of its kind, "" if there is none.
	preDrain, preTerminate string
}

// hooksOf returns the hooks of a Machine, which may be nil.
func hooksOf(machine *clusterv1.Machine) hooks {
	if machine == nil {
		return hooks{}
	}
	first := func(prefix string) string {
		for _, name := range slices.Sorted(maps.Keys(machine.Annotations)) {
			if strings.HasPrefix(name, prefix) {
				return name
			}
		}
		return ""
	}
	return hooks{
		machine:      klog.KObj(machine),
		preDrain:     first(clusterv1.PreDrainDeleteHookAnnotationPrefix),
		preTerminate: first(clusterv1.PreTerminateDeleteHookAnnotationPrefix),
	}
}

// first returns the hook that Cluster API would wait for first, "" if there is none.
func (h hooks) first() string {
	if h.preDrain != "" {
		return h.preDrain
	}
	return h.preTerminate
}

// newWaitingForHook returns what a drain waits for as a sentence.
func newWaitingForHook(observed observation, next decision) string {
	message := "instance " + observed.notice.InstanceID
	if len(observed.nodes) == 1 {
		message = "Node " + observed.nodes[0].Name
	}
	message += fmt.Sprintf(": waits until Machine %s does not have the annotation %s", observed.hooks.machine, observed.hooks.first())
	if !observed.notice.DeleteAt.IsZero() {
		message += ", at the latest until " + observed.notice.DeleteAt.Add(-next.margin).UTC().Format(time.RFC3339)
	}
	return message
}

// machineChanged enqueues the drain of the instance of a Machine when its hooks have changed, or
// its labels, which MachineDrainRules select.
func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	if before != nil && after != nil && before.Spec.ProviderID == after.Spec.ProviderID &&
		hooksOf(before) == hooksOf(after) && maps.Equal(before.Labels, after.Labels) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, machine := range []*clusterv1.Machine{before, after} {
		if machine == nil {
			continue
		}
		for key := range c.byProviderID[providerid.Key(machine.Spec.ProviderID)] {
			c.queue.Add(key)
		}
	}
}
