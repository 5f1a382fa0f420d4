// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// cloudOptions are the options of kwok, for a provider of machines.
type cloudOptions struct {
	provider.Options
	cloud  *cloudtest.Cloud
	faults *cloudtest.Faults
}

func (o cloudOptions) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	return cloud.New(o.faults.Wrap(o.cloud.API(shard)), cloud.Options{CallContext: callContext}), nil
}

// startInCloud starts a server, or another one with the state of s, whose machines are in
// a cloud.
func startInCloud(t *testing.T, s *servertest.Server, cloud *cloudtest.Cloud, faults *cloudtest.Faults) *servertest.Server {
	t.Helper()
	o := servertest.Options{InMemory: true, Providers: provider.Registry{kwoktest.Name: func(o *jsonc.Object) provider.Options {
		return cloudOptions{kwoktest.Providers(nil)[kwoktest.Name](o), cloud, faults}
	}}}
	if s != nil {
		o.DataDir, o.Authority = s.DataDir, s.Authority
	}
	return servertest.Start(t, o)
}

// TestAWrongFirstListReplacesNothing: the cloud shows no machine to a server that starts. The
// records show which machines existed.
func TestAWrongFirstListReplacesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, faults := cloudtest.NewCloud(), cloudtest.NewFaults()
		s := startInCloud(t, nil, cloud, faults)
		upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
		<-time.After(10 * time.Minute)
		before := cloud.Existing()
		assert.Len(t, before, 3)
		s.Stop()

		faults.EmptyLists(1)
		s = startInCloud(t, s, cloud, faults)
		<-time.After(10 * time.Minute)
		assert.Equal(t, before, cloud.Existing())
		assert.Len(t, cloud.Made(), 3)
		assert.Empty(t, cloud.Terminated())

		// A machine that is really lost is replaced.
		s.Stop()
		cloud.Vanish(before[0])
		s = startInCloud(t, s, cloud, faults)
		<-time.After(10 * time.Minute)
		assert.Len(t, cloud.Made(), 4)
		assert.Equal(t, before[1:], cloud.Existing()[:2])
		s.Stop()
	})
}

// TestLoweredSizeInACloud restores a backup that is older than a smaller size. The cloud
// needs some seconds to confirm that the other machines are missing, and the operator needs
// some to connect: its time counts from the confirmation.
func TestLoweredSizeInACloud(t *testing.T) {
	for name, sends := range map[string]bool{"the operator sends the size": true, "no operator": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud, faults := cloudtest.NewCloud(), cloudtest.NewFaults()
				s := startInCloud(t, nil, cloud, faults)
				size := func(size int32) {
					upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: size})
					<-time.After(10 * time.Minute)
				}
				size(5)
				s.Stop()
				backup := backUp(t, s)
				s = startInCloud(t, s, cloud, faults)
				size(3)
				left := cloud.Existing()
				assert.Len(t, left, 3)
				s.Stop()
				restore(t, s, backup)

				// The cloud confirms nothing for longer than the operator's time.
				faults.Fail(cloudtest.Find, 30)
				faults.Count(cloudtest.Find)
				s = startInCloud(t, s, cloud, faults)
				for finds := 0; finds < 30+2*2; finds += faults.Count(cloudtest.Find) {
					<-time.After(100 * time.Millisecond)
				}
				<-time.After(14 * time.Second)
				assert.Len(t, cloud.Made(), 5, "machines before the operator had time")
				want := 5
				if sends {
					size(3)
				} else {
					<-time.After(10 * time.Minute)
					want = 7
				}
				assert.Len(t, cloud.Made(), want, "machines that were ever made")
				assert.Subset(t, cloud.Existing(), left)
				s.Stop()
			})
		})
	}
}

// TestServersThatAreKilledLeaveNoMachine: a group is scaled up and down while its server is
// killed at random moments, responses are lost and reads are late. In the end there are as
// many machines as instances, and no instance has had two.
func TestServersThatAreKilledLeaveNoMachine(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(2, 6)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 2))
				cloud, faults := cloudtest.NewCloud(), cloudtest.NewFaults()
				faults.DelayVisibility(time.Minute)
				s := startInCloud(t, nil, cloud, faults)
				size := int32(0)
				for range 25 {
					size = random.Int32N(8)
					upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: size})
					faults.LoseResponses(cloudtest.Launch, random.IntN(3))
					faults.LoseResponses(cloudtest.Terminate, random.IntN(2))
					pauses := []time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, time.Minute}
					<-time.After(pauses[random.IntN(len(pauses))])
					s.Kill()
					s = startInCloud(t, s, cloud, faults)
				}
				<-time.After(time.Hour)
				assert.Len(t, cloud.Existing(), int(size), "machines")
				assert.ElementsMatch(t, cloud.Existing(), instanceIDs(list(t, s.Operator("default"))[0]))
				made := map[string]int{}
				for _, id := range cloud.Made() {
					if made[id]++; made[id] > 1 {
						t.Errorf("instance %s has had %d machines", id, made[id])
					}
				}
				assert.Len(t, cloud.Terminated(), len(made)-int(size))
				s.Stop()
			})
		})
	}
}
