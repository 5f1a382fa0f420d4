// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
)

// Call is a call that changes a group or deletes an instance, as a shard's server has
// received it.
type Call struct {
	Method string
	// Group is the group, or that of the instance.
	Group string
	// Size is that of an UpsertGroup.
	Size int32
	// Instance is that of a DeleteInstance or an AcknowledgeDrained.
	Instance string
}

// Methods of calls.
const (
	UpsertGroup        = "UpsertGroup"
	DeleteGroup        = "DeleteGroup"
	DeleteInstance     = "DeleteInstance"
	AcknowledgeDrained = "AcknowledgeDrained"
)

// received matches what a server logs about each such call: one about a group before it
// validates it, one about an instance if it has the instance.
var received = regexp.MustCompile(`(?m)\] "Received (group|deletion of group|deletion of instance|acknowledgement of a drain)"` +
	`.*?(?: instance="([^"]*)")? group="([^"]*)"(?: size=(\d+))?.*$`)

var methods = map[string]string{
	"group":                      UpsertGroup,
	"deletion of group":          DeleteGroup,
	"deletion of instance":       DeleteInstance,
	"acknowledgement of a drain": AcknowledgeDrained,
}

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
		call := Call{Method: methods[string(line[1])], Instance: string(line[2]), Group: string(line[3])}
		if call.Method == UpsertGroup {
			size, err := strconv.ParseInt(string(line[4]), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("read a shard's log: %q: %w", line[0], err)
			}
			call.Size = int32(size)
		}
		calls = append(calls, call)
	}
	return calls, nil
}
