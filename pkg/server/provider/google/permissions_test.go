// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestDocumentedPermissions: docs/google.md has exactly the calls that are made, and its
// command grants exactly the permissions of the table.
func TestDocumentedPermissions(t *testing.T) {
	data, err := os.ReadFile("../../../../docs/google.md")
	require.NoError(t, err)
	document := string(data)
	rows := regexp.MustCompile("(?m)^\\| `(compute\\.[A-Za-z]+\\.[A-Za-z]+)` \\| (.+) \\|$").FindAllStringSubmatch(document, -1)
	calls, needed := map[string]bool{}, map[string]bool{}
	for _, row := range rows {
		calls[row[1]] = true
		for _, one := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[2], -1) {
			needed[one[1]] = true
		}
	}
	granted := map[string]bool{}
	match := regexp.MustCompile(`nstance\.machines .*--permissions=(\S+)`).FindStringSubmatch(document)
	require.NotNil(t, match)
	for name := range strings.SplitSeq(match[1], ",") {
		granted[name] = true
	}
	assert.Equal(t, needed, granted)

	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		w.AddMachine(testShard.Zone, "server", "subnet")
		network := newLeaderNetwork(w.api, w.MetadataClient("server"))
		require.NoError(t, network.Assign(t.Context(), provider.Network{IP: leaderAddress}))
		w.AddEndpointGroup(testShard.Zone, "web", "GCE_VM_IP", 0)
		balancers, balancer := newEndpointGroups(w.api), provider.LoadBalancer{Settings: balancerSettings{groups: []string{"web"}}}
		server := []instance.VM{{ID: "server"}}
		require.NoError(t, balancers.Register(t.Context(), balancer, server))
		require.NoError(t, balancers.Deregister(t.Context(), balancer, server))
		_, err := balancers.Targets(t.Context(), balancer)
		require.NoError(t, err)
		h := w.startProvider()
		spec := newSpec(t)
		spec.Args = map[string]any{argProvisioning: spot}
		id := h.MustRun(spec)
		w.Preempt(id)
		h.Await(workers, map[string]instance.State{id: instance.Stopped})
		h.MustDelete(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, w.Methods(), slices.Sorted(maps.Keys(calls)))
	})
}
