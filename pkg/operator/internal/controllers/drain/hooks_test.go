// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

const (
	preDrain     = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/backup"
	preTerminate = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/detach"
)

// setHooks gives the Machine of the Node n1 annotations.
func (h *harness) setHooks(names ...string) {
	h.t.Helper()
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "m", Annotations: map[string]string{}}}
	machine.Spec.ProviderID = "kwok:///n1"
	for _, name := range names {
		machine.Annotations[name] = ""
	}
	h.machines.set(h.t, machine)
}

func TestAPreDrainHookDelaysTheEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPodOf("web"))
		h.setHooks(preDrain)
		start := time.Now()
		h.announce("n1", start.Add(time.Hour))
		advance(10 * time.Minute)
		h.expectCordonedBy("n1", "operator")
		assert.Equal(t, time.Duration(-1), h.evictedAt("web", start))
		assert.Equal(t, []string{"Node n1: waits until Machine " + controllertest.Namespace + "/m does not have the annotation " + preDrain +
			", at the latest until " + start.Add(time.Hour-gracePeriod(newPodOf("web"))-evictionMargin).UTC().Format(time.RFC3339)},
			h.controller.Waiting("a", "workers"))
		h.expectAcknowledged()

		h.setHooks()
		advance(10 * time.Second)
		assert.Equal(t, 10*time.Minute, h.evictedAt("web", start))
		h.expectAcknowledged("i-n1")
	})
}

// A Pod keeps its grace period, whatever a hook says.
func TestAHookEndsBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPodOf("web"))
		h.setHooks(preDrain)
		start := time.Now()
		h.announce("n1", start.Add(10*time.Minute))
		advance(11 * time.Minute)
		assert.Equal(t, 10*time.Minute-gracePeriod(newPodOf("web"))-evictionMargin, h.evictedAt("web", start))
		h.expectAcknowledged() // the shard deletes the instance at the deadline
	})
}

func TestAHookDelaysTheAcknowledgement(t *testing.T) {
	for name, hook := range map[string]string{"pre-drain": preDrain, "pre-terminate": preTerminate} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"))
				h.setHooks(hook)
				h.announce("n1", time.Now().Add(time.Hour))
				advance(time.Minute)
				h.expectAcknowledged()
				assert.Len(t, h.controller.Waiting("a", "workers"), 1)
				h.setHooks()
				advance(time.Second)
				h.expectAcknowledged("i-n1")
			})
		})
	}
}

// Cluster API waits for the hooks of a Machine that has no Node, too.
func TestAHookDelaysTheAcknowledgementWithoutANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.setHooks(preTerminate)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Minute)
		h.expectAcknowledged()
		h.setHooks()
		advance(5 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestAPreTerminateHookDoesNotDelayEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPodOf("web"))
		h.setHooks(preTerminate)
		start := time.Now()
		h.announce("n1", start.Add(time.Hour))
		advance(time.Minute)
		assert.Equal(t, time.Duration(0), h.evictedAt("web", start))
		h.expectAcknowledged()
	})
}
