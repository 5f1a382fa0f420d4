// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// ask asks all questions while an instance runs, and returns the results and the instances.
func (w *world) ask(args map[string]any) (results map[string]string, requested map[string]string) {
	w.t.Helper()
	newSpec := func() provider.Spec {
		s := request(w.t).Spec
		s.Args = args
		s.Userdata = []byte("#!/bin/sh\necho '" + provider.BootMark(s.ID) + "' >/dev/console\n")
		return s
	}
	r := request(w.t)
	r.Spec = newSpec()
	r.Token = r.ID
	vm := w.launchRunning(r)
	trial := providertest.NewTrial(r.Spec, instance.VM{ID: r.ID, ProviderID: vm.ProviderID}, newSpec)
	w.AddEndpointGroup(testShard.Zone, "web", "GCE_VM_IP", 0)
	trial.Balancers = []provider.LoadBalancer{{Key: "web", Settings: balancerSettings{groups: []string{"web"}}}}
	results = providertest.Ask(w.t, examine(w.api), trial)
	assert.Empty(w.t, w.Endpoints(testShard.Zone, "web", r.ID))
	assert.Empty(w.t, w.Aliases(r.ID))
	return results, trial.Requested
}

// TestAssumptions: the emulator answers as is expected of Compute Engine.
func TestAssumptions(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		results, requested := w.ask(nil)
		var differ, unanswered []string
		for title, result := range results {
			switch result[0] {
			case 'd':
				differ = append(differ, title+": "+result)
			case 'n':
				unanswered = append(unanswered, title+": "+result)
			}
		}
		assert.Empty(t, differ)
		assert.Equal(t, []string{"instance templates: not checked: the template of the check has no argument instance_template"}, unanswered)
		for title, want := range map[string]string{
			"free addresses":                               "subnetwork subnet has 65531 free addresses in 10.0.0.0/16",
			"missing machines":                             "404 notFound: The resource 'projects/test-project/zones/zone-a/instances/",
			"long descriptions":                            "2048 characters: accepted",
			"request ids, the same id and content":         "operation-",
			"request ids, the same id with other userdata": "400 invalid: Invalid value for field 'requestId'",
			"request ids of failed operations":             "an operation that fails with IP_IN_USE_BY_ANOTHER_RESOURCE: the failed operation",
			"early deletions":                              "deletion of a machine that is PROVISIONING: accepted; a second deletion: 400 resourceNotReady",
			"network endpoints":                            "attachNetworkEndpoints: accepted; attachNetworkEndpoints: 400 invalid",
			"alias ranges, an address of another machine, and a stale fingerprint": "an operation that fails with IP_IN_USE_BY_ANOTHER_RESOURCE; a stale fingerprint: 412 conditionNotMet",
			"preemptions": "status TERMINATED, an operation with its id was found: true",
			"first boot":  "shows it",
		} {
			assert.Contains(t, results[title], want, title)
		}
		// Everything that exists is known, so that it is removed.
		own := slices.DeleteFunc(w.All(), func(name string) bool { _, known := requested[name]; return known })
		assert.Len(t, own, 1, "machines that no question has requested")
	})
}

// TestAssumptionsThatDoNotHold: a service that behaves differently is noticed.
func TestAssumptionsThatDoNotHold(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*gcetest.Server)
		args    map[string]any
		want    map[string]string
	}{
		"the image has no cloud-init": {
			func(s *gcetest.Server) { s.NoCloudInit = true }, nil,
			map[string]string{"first boot": "differs: the console of "},
		},
		"no utilization": {
			func(s *gcetest.Server) { s.NoUtilization = true }, nil,
			map[string]string{"free addresses": "differs: subnetwork subnet shows no utilization"},
		},
		"a request id gives the first operation": {
			func(s *gcetest.Server) { s.Lenient = true }, nil,
			map[string]string{"request ids, the same id with other userdata": "as expected: operation-"},
		},
		"no spot capacity": {
			func(s *gcetest.Server) { s.SetExhausted(testType.Name, "SPOT", true) }, nil,
			map[string]string{"preemptions": "no answer: operation operation-"},
		},
		"an instance template": {
			func(*gcetest.Server) {}, map[string]any{argInstanceTemplate: gcetest.Template},
			map[string]string{"instance templates": "as expected: 0 labels are missing; the description is that of the request: true; the userdata is that of the request: true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				if tc.args != nil {
					w.options.Machine = nil
				}
				w.api = w.newAPI()
				tc.prepare(w.Server)
				results, _ := w.ask(tc.args)
				for title, want := range tc.want {
					assert.Contains(t, results[title], want, title)
				}
			})
		})
	}
}
