// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	"testing"

	"nstance.dev/operator/pkg/base/identifier"
)

// The definition of shard groups rejects any other name.
func TestShardGroupName(t *testing.T) {
	if got := ShardGroupName("workers", "us-west-2a"); got != "workers--us-west-2a" {
		t.Errorf("got %q", got)
	}
	for _, rule := range schemaOf(crds(t)["NstanceShardGroup"]).XValidations {
		if rule.Rule == "self.metadata.name == self.spec.group + '"+identifier.Separator+"' + self.spec.shard" {
			return
		}
	}
	t.Error("the definition has no rule for the name")
}
