// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import (
	"fmt"
	"os"
	"regexp"
)

// Order is an on-demand instance that a shard has taken the order of.
type Order struct {
	Instance string
	Group    string
}

// ordered matches what a server logs of each such instance, once: a call that is
// repeated orders nothing.
var ordered = regexp.MustCompile(`(?m)\] "On-demand instance is ordered".* instance="([^"]*)" group="([^"]*)"`)

// Orders returns the on-demand instances that a shard's server was made to order
// since the installation, whatever became of them. It survives restarts of the
// server.
func (n *Nstance) Orders(shardID string) ([]Order, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, err
	}
	log, err := os.ReadFile(n.cp.Component(shard.Component()).LogPath())
	if err != nil {
		return nil, fmt.Errorf("reading the orders of shard %s: %w", shardID, err)
	}
	return ordersIn(log), nil
}

func ordersIn(log []byte) []Order {
	var orders []Order
	for _, line := range ordered.FindAllSubmatch(log, -1) {
		orders = append(orders, Order{Instance: string(line[1]), Group: string(line[2])})
	}
	return orders
}
