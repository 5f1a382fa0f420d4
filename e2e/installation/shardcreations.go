// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"os"
	"regexp"
)

// Creation is an on-demand instance that a shard has created.
type Creation struct {
	Instance string
	Group    string
}

// created matches what a server logs about each such instance, once: a repeated call
// creates nothing.
var created = regexp.MustCompile(`(?m)\] "Creating on-demand instance".* instance="([^"]*)" group="([^"]*)"`)

// Creations returns the on-demand instances that a shard's servers have created
// since the installation, also those that were deleted since.
func (n *Installation) Creations(shardID string) ([]Creation, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, err
	}
	log, err := os.ReadFile(n.cp.Component(shard.Component()).LogPath())
	if err != nil {
		return nil, fmt.Errorf("read the creations of shard %s: %w", shardID, err)
	}
	return creationsIn(log), nil
}

func creationsIn(log []byte) []Creation {
	var creations []Creation
	for _, line := range created.FindAllSubmatch(log, -1) {
		creations = append(creations, Creation{Instance: string(line[1]), Group: string(line[2])})
	}
	return creations
}
