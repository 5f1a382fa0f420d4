// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"strconv"
	"strings"
)

// Volume is a volume claim of the cluster.
type Volume struct {
	// Name is the name of the claim.
	Name string
	// Ordinal is that of its node.
	Ordinal int32
	// Terminating is true while it is being deleted.
	Terminating bool
}

// VolumeOrdinal returns the ordinal of the node that a claim of a cluster belongs to. Names
// that the StatefulSet controller does not make, such as data-demo-007, belong to no node.
func VolumeOrdinal(cluster, claim string) (int32, bool) {
	text, ok := strings.CutPrefix(claim, "data-"+cluster+"-")
	if !ok {
		return 0, false
	}
	ordinal, err := strconv.ParseInt(text, 10, 32)
	if err != nil || ordinal < 0 || strconv.FormatInt(ordinal, 10) != text {
		return 0, false
	}
	return int32(ordinal), true
}

// Reclaimable returns the volumes of removed nodes that may be deleted: the cluster has its
// size, every copy exists without them, and no Pod exists that is not part of it.
func Reclaimable(target int32, o *Observation, volumes []Volume) []Volume {
	if target != o.Replicas || o.rolling() || o.gate(none) != nil {
		return nil
	}
	var reclaimable []Volume
	for _, volume := range volumes {
		if volume.Ordinal >= o.Replicas && !volume.Terminating {
			reclaimable = append(reclaimable, volume)
		}
	}
	return reclaimable
}
