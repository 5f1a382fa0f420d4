// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"path"
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/puidv7"
)

// TestProviderIDsEndInTheInstanceID has two clusters with shards of the same zones,
// and groups of one name. Some clients compare only the last segment of provider
// ids, which must therefore be unique.
func TestProviderIDsEndInTheInstanceID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]string{}
		for _, cluster := range []string{"first", "second"} {
			client := kwoktest.NewClientset()
			for _, shard := range []string{"a", "b"} {
				p := start(t, client, shard)
				for range 100 {
					id := p.MustRun(spec())
					vm, _ := p.Get(id)
					segment := path.Base(vm.ProviderID)
					if _, err := puidv7.Parse(segment); err != nil || segment != id {
						t.Errorf("provider id %q of instance %s: %v", vm.ProviderID, id, err)
					}
					if other, taken := seen[segment]; taken {
						t.Errorf("%q in cluster %s has the last segment of %q", vm.ProviderID, cluster, other)
					}
					seen[segment] = vm.ProviderID
				}
			}
		}
	})
}
