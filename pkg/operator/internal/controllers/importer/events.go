// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import "nstance.dev/operator/pkg/controller"

// Reasons of the events that pools get.
const (
	// reasonShardNotListed: the pool's group is on a shard that it does not name.
	reasonShardNotListed = "ShardNotListed"
	// reasonNameTaken: a group cannot have a pool because the pool has its name.
	reasonNameTaken = "NameTaken"
	// reasonImported: the pool was created for a group that was on shards.
	reasonImported = "Imported"
)

func (c *Controller) warn(w *warning) {
	if w != nil {
		controller.Warn(c.recorder, w.pool, w.reason, "Import", w.message)
	}
}
