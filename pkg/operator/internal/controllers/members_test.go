// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestPoolsAreFoundByGroup(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &v1beta1.NstanceMachinePool{}, 0, cache.Indexers{})
	pools, err := NewPools(informer)
	require.NoError(t, err)
	if _, err := NewPools(informer); err != nil {
		t.Errorf("a second controller cannot share the index: %v", err)
	}
	for name, group := range map[string]v1beta1.Identifier{"one": "workers", "two": "others"} {
		pool := &v1beta1.NstanceMachinePool{}
		pool.Name, pool.Spec.Group = name, group
		require.NoError(t, informer.GetIndexer().Add(pool))
	}
	if found := pools.OfGroup("workers"); len(found) != 1 || found[0].Name != "one" {
		t.Errorf("found %v, want the pool one", found)
	}
	if found := pools.OfGroup("missing"); len(found) > 0 {
		t.Errorf("found %v, want none", found)
	}
}
