// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// ask asks all questions while an instance runs, and returns the results and the instances.
func (w *world) ask() (results map[string]string, requested map[string]string) {
	w.t.Helper()
	newSpec := func() provider.Spec {
		s := request(w.t).Spec
		s.Userdata = []byte("#!/bin/sh\necho '" + provider.BootMark(s.ID) + "' >/dev/console\n")
		return s
	}
	r := request(w.t)
	r.Spec = newSpec()
	r.Token = r.ID
	vm := w.launch(r)
	time.Sleep(w.BootTime)
	c, err := connect(testShard, w.Dial)
	require.NoError(w.t, err)
	trial := providertest.NewTrial(r.Spec, instance.VM{ID: r.ID, ProviderID: vm.ProviderID}, newSpec)
	results = providertest.Ask(w.t, c.examine(w.options), trial)
	return results, trial.Requested
}

// TestAssumptions: the emulator answers as is expected of EC2, and nothing but instances is left.
func TestAssumptions(t *testing.T) {
	s := newRegion()
	s.HarmlessForce = true
	inBubble(t, s, func(t *testing.T, w *world) {
		w.AddInterface(leaderInterface, ec2test.Zone, leaderAddress.String())
		results, requested := w.ask()
		assert.Equal(t, map[string]string{
			"zone of the subnets":                                                   "as expected: the shard is in us-test-1a; " + largeSubnet + " is in us-test-1a",
			"visibility of instances":                                               "as expected: i-00000000000000002 was shown by its id after 0s and by its tags after 0s",
			"targets, an instance that is pending":                                  "not checked: --load-balancers is not set",
			"client tokens, the same token and content":                             "as expected: i-00000000000000002, the first instance is i-00000000000000002",
			"client tokens, the same token with other userdata":                     "as expected: IdempotentParameterMismatch",
			"client tokens, after a launch that was refused":                        "as expected: InvalidAMIID.NotFound, and then i-00000000000000003",
			"client tokens, after the termination":                                  "as expected: IdempotentInstanceTerminated, the terminated instance is i-00000000000000002",
			"targets, an instance that was terminated, and one that does not exist": "not checked: --load-balancers is not set",
			"spot instances":                                                        "as expected: i-00000000000000004",
			"first boot":                                                            "as expected: the console of i-00000000000000001 shows it",
			"detached network interfaces":                                           "as expected: attached after 2s, and after a detachment with force again after 2s",
		}, results)
		assert.Equal(t, []string{leaderInterface}, w.Interfaces(), "interfaces without the tags of a question")
		ids := map[string]string{}
		for _, made := range w.Made()[1:] {
			ids[made.Tag] = providerID(ec2test.Zone, made.InstanceID)
		}
		assert.Equal(t, ids, requested, "instances that the check has to remove")
	})
}

// TestAssumptionsThatDoNotHold: a service that behaves differently is noticed.
func TestAssumptionsThatDoNotHold(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*ec2test.Server)
		want    map[string]string
	}{
		"the image has no cloud-init": {
			func(s *ec2test.Server) { s.NoCloudInit, s.HarmlessForce = true, true },
			map[string]string{"first boot": "differs: the console of i-00000000000000001 does not show it after 6m0s: the image may have no cloud-init, or no console"},
		},
		"an index cannot be used again": {
			func(*ec2test.Server) {},
			map[string]string{"detached network interfaces": "as expected: attached after 2s, and the second time not within 30s"},
		},
		"instances are shown late": {
			func(s *ec2test.Server) { s.DelayVisibility(40 * time.Second) },
			map[string]string{"visibility of instances": "as expected: i-00000000000000002 was shown by its id after 40s and by its tags after 40s, which is late"},
		},
		"instances are never shown": {
			func(s *ec2test.Server) { s.DelayVisibility(time.Hour) },
			map[string]string{"visibility of instances": "differs: after 5m0s i-00000000000000002 is not shown by its id"},
		},
		"no spot capacity": {
			func(s *ec2test.Server) { s.SetFull(testType.Name, ec2test.Zone, "spot", true) },
			map[string]string{"spot instances": "no answer: operation error"},
		},
		"a permission is missing": {
			func(s *ec2test.Server) {
				s.SetFaults(&ec2test.Fault{Call: "CreateNetworkInterface", Status: 403, Code: "UnauthorizedOperation", Times: 1})
			},
			map[string]string{"detached network interfaces": "no answer: operation error EC2: CreateNetworkInterface"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				tc.prepare(w.Server)
				results, _ := w.ask()
				for title, want := range tc.want {
					assert.Contains(t, results[title], want)
				}
				for title, result := range results {
					if _, listed := tc.want[title]; !listed {
						assert.NotContains(t, result, "differs", title)
					}
				}
				assert.Empty(t, w.Interfaces())
			})
		})
	}
}

// TestOneZoneTooMany: a subnet of another zone is noticed before machines have the wrong provider id.
func TestOneZoneTooMany(t *testing.T) {
	s := newRegion()
	s.AddSubnet("subnet-0000000000000000b", "us-test-1b", 10)
	inBubble(t, s, func(t *testing.T, w *world) {
		e := &examination{api: w.api}
		answer, err := e.zones(t.Context(), &provider.Trial{Subnets: []string{largeSubnet, "subnet-0000000000000000b"}})
		require.NoError(t, err)
		assert.True(t, answer.Differs, answer.Text)
		assert.Contains(t, answer.Text, "subnet-0000000000000000b is in us-test-1b")
	})
}

// TestFormerInterfaces: the next check removes interfaces of one that was killed, also if they are
// attached, and no interfaces of others.
func TestFormerInterfaces(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		w.AddInterface(leaderInterface, ec2test.Zone, leaderAddress.String())
		r := request(t)
		vm := w.launch(r)
		time.Sleep(w.BootTime)
		c, err := connect(testShard, w.Dial)
		require.NoError(t, err)
		for _, pause := range []time.Duration{time.Second, 3 * time.Second, 5 * time.Second, time.Minute} {
			trial := providertest.NewTrial(r.Spec, instance.VM{ID: r.ID, ProviderID: vm.ProviderID}, nil)
			killed := &examination{api: w.newAPI()}
			ctx, kill := context.WithCancel(t.Context())
			go func() { _, _ = killed.detached(ctx, &trial.Trial) }()
			time.Sleep(pause)
			kill()
			synctest.Wait()
			require.Len(t, w.Interfaces(), 2)
			other := testShard
			other.ID = "b"
			ofOther, err := connect(other, w.Dial)
			require.NoError(t, err)
			removed, err := ofOther.examine(w.options).CleanUp(t.Context())
			require.NoError(t, err)
			assert.Empty(t, removed, "interfaces of another shard")
			removed, err = c.examine(w.options).CleanUp(t.Context())
			require.NoError(t, err)
			assert.Len(t, removed, 1)
			assert.Equal(t, []string{leaderInterface}, w.Interfaces())
		}
	})
}
