// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// ask asks all questions while an instance runs, and returns the results and the instances.
func (w *world) ask() (results map[string]string, requested map[string]string) {
	w.t.Helper()
	r := request(w.t)
	vm := w.launch(r)
	trial := providertest.NewTrial(r.Spec, instance.VM{ID: r.ID, ProviderID: vm.ProviderID}, func() provider.Spec { return request(w.t).Spec })
	return providertest.Ask(w.t, examine(w.api), trial), trial.Requested
}

// TestAssumptions: the emulator answers as is expected of Proxmox VE.
func TestAssumptions(t *testing.T) {
	s := newCluster()
	s.AddTemplate(9001, "pve2", "debian", "ceph", 4)
	inBubble(t, s, func(t *testing.T, w *world) {
		// Both endpoints are the same server.
		w.api.client.endpoints = append(w.api.client.endpoints, w.api.client.endpoints[0])
		results, requested := w.ask()
		for title, want := range map[string]string{
			"tags": `as expected: the machine has the tags "nstance;nstance-cluster-test;nstance-shard-a;nstance-instance-`,
			"used VMIDs, on the node that has the VMID":                       "as expected: node pve1: 500 unable to create VM 10000: config file already exists",
			"used VMIDs, on another node":                                     "as expected: node pve2: a task that ends with close (rename) atomic file",
			"texts of errors, start of a machine that runs":                   "as expected: a task that ends with VM 10000 already running",
			"texts of errors, configuration of a machine that does not exist": "as expected: virtual machine 999999999: 500 ",
			"texts of errors, deletion of an image that does not exist":       "as expected: local:iso/nstance-",
			"texts of errors, a storage without space, a lock that is held":   "not checked: ",
			"other nodes": "as expected: ",
			"first boot":  "not checked: the API does not show consoles",
		} {
			assert.Contains(t, results[title], want, title)
			delete(results, title)
		}
		assert.Empty(t, results, "other questions")
		for _, made := range w.Made()[1:] {
			assert.Contains(t, requested, made.Name, "instances that the check has to remove")
		}
		assert.Len(t, w.Made(), 2)
	})
}

// TestAssumptionsThatDoNotHold: a cluster that limits tags, and one endpoint.
func TestAssumptionsThatDoNotHold(t *testing.T) {
	s := newCluster()
	s.SetTagAccess("none")
	inBubble(t, s, func(t *testing.T, w *world) {
		results, requested := w.ask()
		assert.Contains(t, results["tags"], `as expected: the machine has the tags "`)
		assert.Contains(t, results["tags"], "user-tag-access: map[user-allow:none]")
		assert.Equal(t, "not checked: no other node has the template", results["used VMIDs, on another node"])
		assert.Equal(t, "not checked: the options have one endpoint", results["other nodes"])
		assert.Empty(t, requested)
	})
	inBubble(t, newCluster(), func(t *testing.T, w *world) {
		w.SetFaults(&pvetest.Fault{Verb: "GET", Call: "/cluster/options", Status: 403, Message: "Permission check failed", Times: 1})
		results, _ := w.ask()
		assert.Contains(t, results["tags"], "no answer: GET cluster/options: HTTP 403: Permission check failed")
		var texts []string
		for title := range results {
			texts = append(texts, title)
		}
		slices.Sort(texts)
		assert.Len(t, texts, 9)
	})
}
