// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

const bootDelay = 30 * time.Second

var group = instance.GroupKey{Tenant: "default", Group: "workers"}

var instanceTypes = provider.Catalogue{
	"m7i.large": {Name: "m7i.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("8Gi"), Arch: "amd64"},
	"c7i.large": {Name: "c7i.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("4Gi"), Arch: "amd64"},
}

// options returns the options of the providers in all tests.
func options() *kwok.Options {
	return &kwok.Options{BootDelay: bootDelay, InstanceTypes: instanceTypes, SubnetCapacity: map[string]int32{"small": 2}}
}

// spec returns the request for an instance of the group.
func spec() provider.Spec {
	return provider.Spec{Group: group, Type: instanceTypes["m7i.large"]}
}

// start runs the provider of a shard of cluster "test" in a bubble of synctest.
func start(t *testing.T, client *fake.Clientset, shard string) *providertest.Harness {
	t.Helper()
	h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
		p, err := kwok.New(kwok.Config{
			Shard:       provider.Shard{ClusterID: "test", ID: shard, Region: "us-west-2", Zone: "zone-of-" + shard},
			Options:     options(),
			Client:      kwoktest.Nodes(client),
			CallContext: callContext,
		})
		require.NoError(t, err)
		return p
	})
	synctest.Wait()
	return h
}

// calls returns how many calls of each verb client has had for Nodes, and
// discards them.
func calls(client *fake.Clientset) map[string]int {
	verbs := map[string]int{}
	for _, action := range client.Actions() {
		if action.GetResource().Resource == "nodes" {
			verbs[action.GetVerb()]++
		}
	}
	client.ClearActions()
	return verbs
}
