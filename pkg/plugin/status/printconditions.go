// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"fmt"
	"io"

	"nstance.dev/operator/pkg/plugin/printing"
)

// printConditions writes the conditions that are not as they should be, with their
// messages.
func printConditions(w io.Writer, status Status, options printing.Options) {
	title := "\nCONDITIONS\n"
	list := func(object string, conditions []Condition) {
		for _, condition := range conditions {
			fmt.Fprintln(w, title+object+": "+condition.Text(options))
			title = ""
		}
	}
	for _, pool := range status.Pools {
		list("NstanceMachinePool "+pool.Namespace+"/"+pool.Name, pool.Problems)
		for _, shard := range pool.Shards {
			list("NstanceShardGroup "+pool.Namespace+"/"+shard.ShardGroup, shard.Problems)
			if shard.Lent != "" {
				fmt.Fprintf(w, "%sNstanceShardGroup %s/%s: instances lent, below 0 borrowed: %s\n", title, pool.Namespace, shard.ShardGroup, shard.Lent)
				title = ""
			}
		}
	}
	for _, machine := range status.OnDemand {
		list("NstanceMachine "+machine.Namespace+"/"+machine.Machine, machine.Problems)
	}
}
