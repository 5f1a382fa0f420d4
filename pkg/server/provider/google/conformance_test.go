// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestMain(m *testing.M) { os.Exit(crashes.Main(m)) }

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run:            synctest.Test,
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      largeType,
		Subnet:         "subnet",
		LimitedSubnet:  "two",
		RejectedSubnet: "full",
		QuietPeriod:    5 * time.Minute,
		Markets:        &Options{},
	})
}

// newBackend returns a project without machines.
func newBackend(t *testing.T) providertest.Backend {
	s := gcetest.New()
	// When a list shows one of two concurrent launches, both have finished.
	s.OperationTime, s.BootTime = 100*time.Millisecond, 100*time.Millisecond
	s.StartInMemory(t)
	options := testOptions(s)
	b := cloudtest.NewBackendOf(t, func(shard provider.Shard) (*API, error) { return newAPI(options, shard, s.Transport()) }, func(shard provider.Shard) cloud.Options {
		return options.engine(shard, nil)
	})
	b.Existing, b.Remove = s.Machines, s.Remove
	b.Stock = func(typeName, market string, available bool) {
		s.SetExhausted(typeName, marketArgument.Values[market], !available)
	}
	return b
}

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	spec := providertest.MetadataSpec(t)
	api := &API{shard: testShard}
	description, err := newIdentity(testShard, spec).description()
	require.NoError(t, err)
	stored, found := parseDescription(description)
	require.True(t, found)
	names := append(providertest.MetadataNames(labelPrefix, api.labels(spec, nil)), providertest.JSONNames(t, stored)...)
	assert.ElementsMatch(t, providertest.DocumentedMetadata(t, Name), slices.Compact(slices.Sorted(slices.Values(names))))
}

// TestDocumentedCalls: docs/google.md has exactly the calls that are made. The tests of
// "nstance-admin shard init" compare the permissions of its table with what the command grants.
func TestDocumentedCalls(t *testing.T) {
	data, err := os.ReadFile("../../../../docs/google.md")
	require.NoError(t, err)
	calls := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(compute\\.[A-Za-z]+\\.[A-Za-z]+)` \\| .+ \\|$").FindAllStringSubmatch(string(data), -1) {
		calls[row[1]] = true
	}

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

// steps are the steps of a launch and of a termination.
var steps = []string{
	"request the machine", "wait for the operation", "read the machine", "return the machine",
	"delete the machine", "return",
}

// crashes has processes that use application default credentials.
var crashes = cloudtest.Crashes[Options]{
	Steps: steps,
	Size: func(n int) int {
		// More than before, so that there is something to launch, and then less.
		if left := len(steps) - 1 - n%len(steps); left <= len(steps)-1-slices.Index(steps, "delete the machine") {
			return left
		}
		return 2 + n%len(steps)
	},
	Spec: provider.Spec{Kind: "knd", Type: testType, Subnet: "subnet"},
	New: func(o *Options, step func(string)) (provider.Provider, error) {
		api, err := NewAPI(o, testShard)
		if err != nil {
			return nil, err
		}
		api.step, api.limits = step, cloudtest.ShortLimits(api.limits)
		return cloud.New(api, cloud.Options{}), nil
	},
}

// TestTheServerIsKilled at each step, with a project whose operations are fast.
func TestTheServerIsKilled(t *testing.T) {
	project := gcetest.New()
	project.OperationTime, project.BootTime, project.DeleteTime = 30*time.Millisecond, 20*time.Millisecond, 30*time.Millisecond
	project.Start(t)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", project.Credentials(t))
	crashes.Test(t, testOptions(project), cloudtest.CrashedCloud{
		Made:     project.Made,
		Settled:  func(ids []string) bool { return slices.Equal(ids, project.All()) && len(project.Disks()) == len(ids) },
		Existing: func() string { return fmt.Sprintf("virtual machines %v, disks %v", project.All(), project.Disks()) },
	})
}

// randomFault makes some of the next calls fail.
func randomFault(random *rand.Rand) *gcetest.Fault {
	methods := []string{"instances.insert", "instances.get", "instances.list", "instances.delete", "zoneOperations.get", "subnetworks.get", ""}
	statuses := []int{0, 0, 401, 404, 429, 500, 503}
	f := &gcetest.Fault{
		Call: methods[random.IntN(len(methods))], Times: 1 + random.IntN(4),
		Before: random.IntN(2) == 0, Status: statuses[random.IntN(len(statuses))],
	}
	// A response that the call was rejected is true only if it had no effect.
	f.Before = f.Before || f.Status == 401 || f.Status == 404 || f.Status == 429
	return f
}

// walk returns a random walk in which also capacity comes and goes.
func (w *world) walk(random *rand.Rand) *cloudtest.Walk {
	return &cloudtest.Walk{
		Random: random,
		Start:  w.startProvider,
		Spec: func(settling bool) provider.Spec {
			spec := newSpec(w.t)
			if !settling {
				spec.Subnet = []string{"subnet", "subnet", "two", "full", "missing"}[random.IntN(5)]
				spec.Type = []provider.InstanceType{testType, largeType}[random.IntN(2)]
				spec.Args = map[string]any{argProvisioning: []string{standard, spot}[random.IntN(2)]}
			}
			return spec
		},
		Events: []func(){
			func() { w.SetFaults(randomFault(random), randomFault(random)) },
			func() { w.SetExhausted("e2-small", standard, random.IntN(2) == 0) },
			func() { w.SetExhausted("e2-standard-4", spot, random.IntN(2) == 0) },
			func() { w.SetOffered("e2-standard-4", random.IntN(2) == 0) },
			func() { w.Reject("e2-small", []string{"", "INTERNAL_ERROR", "QUOTA_EXCEEDED"}[random.IntN(3)]) },
			func() {
				w.SetOperationTime([]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}[random.IntN(4)])
			},
		},
		Settle: func() {
			w.SetFaults()
			w.SetExhausted("e2-small", standard, false)
			w.SetExhausted("e2-standard-4", spot, false)
			w.SetOffered("e2-standard-4", true)
			w.Reject("e2-small", "")
			w.SetOperationTime(time.Second)
		},
		SettleSteps: 80,
		Made:        w.Made,
		Ran:         w.Made,
		Deleted:     w.Deleted,
		Check: func(wanted []string) {
			assert.Equal(w.t, wanted, w.All(), "machines")
			assert.Len(w.t, w.Disks(), len(wanted), "disks")
		},
		Least: 2,
	}
}

func TestRandomWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(3, 20)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := gcetest.New()
			s.Lenient, s.PageSize = seed%2 == 1, 2
			s.VisibilityDelay = []time.Duration{0, 0, 30 * time.Second}[seed%3]
			inBubble(t, s, func(t *testing.T, w *world) { w.walk(rand.New(rand.NewPCG(seed, 2))).Test(t) })
		})
	}
}
