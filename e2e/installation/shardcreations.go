// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
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
	log, err := n.serverLog(shardID)
	if err != nil {
		return nil, err
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
