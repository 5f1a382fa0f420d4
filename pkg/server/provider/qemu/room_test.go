// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

func TestRoom(t *testing.T) {
	options := testOptions(t, deafGuest)
	options.Subnets["memory"] = Subnet{Memory: resource.MustParse("96Mi")}
	options.Subnets["both"] = Subnet{Memory: resource.MustParse("96Mi"), Instances: ptr.To[int32](1)}
	api := NewAPI(options, testShard)
	expect := func(subnet string, want int) {
		t.Helper()
		room, err := api.Room(t.Context(), subnet)
		require.NoError(t, err)
		assert.Equal(t, want, room)
	}
	in := func(subnet string, instanceType provider.InstanceType) cloud.Request {
		r := request(t)
		r.Subnet, r.Type = subnet, instanceType
		return r
	}
	expect("subnet", math.MaxInt32)
	expect("memory", 3)
	expect("both", 1)
	large := launchOne(t, api, in("memory", largeType))
	launchOne(t, api, in("both", testType))
	expect("memory", 1)
	expect("both", 0)
	expectRejection(t, api, in("memory", largeType), cloud.Scope{Type: "large", Subnet: "memory"}, "32 MiB are left")
	expectRejection(t, api, in("both", testType), cloud.Scope{Subnet: "both"}, "room for 1 instances")
	assert.Len(t, entries(t, api), 2)

	// The repetition of a launch needs no more room.
	again := in("memory", largeType)
	again.ID = large.id
	launchOne(t, api, again)
	expect("memory", 1)

	// A machine needs room until it is deleted.
	signal(t, large, syscall.SIGKILL)
	await(t, "QEMU has exited", func() bool { return find(t, api, large).State == instance.Failed })
	expect("memory", 1)
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{{ID: large.id}}))
	await(t, "the machine is deleted", func() bool {
		list, err := api.List(t.Context())
		require.NoError(t, err)
		return len(list) == 1
	})
	expect("memory", 3)
}

func TestLaunchesAtOnceShareTheRoom(t *testing.T) {
	api := NewAPI(testOptions(t, deafGuest), testShard)
	const launches = 6
	results := make(chan error, launches)
	for range launches {
		r := request(t)
		r.Subnet = "two"
		go func() {
			_, err := api.Launch(t.Context(), r)
			results <- err
		}()
	}
	launched := 0
	for range launches {
		err := <-results
		if err == nil {
			launched++
			continue
		}
		assert.ErrorContains(t, err, "room for 2 instances")
	}
	assert.Equal(t, 2, launched)
	assert.Len(t, entries(t, api), 2)
}
