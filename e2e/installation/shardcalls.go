// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
)

// Call is a call of UpsertGroup or DeleteGroup that a shard's server has received.
type Call struct {
	Group string
	// Delete: the call was DeleteGroup, otherwise UpsertGroup.
	Delete bool
	// Size is that of an UpsertGroup.
	Size int32
}

// received matches what a server logs about each such call, before it validates it.
var received = regexp.MustCompile(`(?m)\] "Received (group|deletion of group)".* group="([^"]*)"(?: size=(\d+))?.*$`)

// Calls returns the calls that a shard's servers have received since the
// installation, also those that were rejected, in the order in which they arrived.
func (n *Installation) Calls(shardID string) ([]Call, error) {
	log, err := n.serverLog(shardID)
	if err != nil {
		return nil, err
	}
	return callsIn(log)
}

// serverLog returns what the servers of a shard have logged since the installation.
func (n *Installation) serverLog(shardID string) ([]byte, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, err
	}
	log, err := os.ReadFile(n.cp.Component(shard.Component()).LogPath())
	if err != nil {
		return nil, fmt.Errorf("read the log of shard %s: %w", shardID, err)
	}
	return log, nil
}

func callsIn(log []byte) ([]Call, error) {
	var calls []Call
	for _, line := range received.FindAllSubmatch(log, -1) {
		call := Call{Group: string(line[2]), Delete: string(line[1]) != "group"}
		if !call.Delete {
			size, err := strconv.ParseInt(string(line[3]), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("read a shard's log: %q: %w", line[0], err)
			}
			call.Size = int32(size)
		}
		calls = append(calls, call)
	}
	return calls, nil
}
