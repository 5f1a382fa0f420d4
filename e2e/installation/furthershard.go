// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import "context"

// AddShard runs the server of a further shard, which no operator knows yet, and returns its
// address for operators.
func (n *Installation) AddShard(ctx context.Context, id string) (string, error) {
	added := []Shard{{ID: id}}
	if err := fillInPorts(added); err != nil {
		return "", err
	}
	n.options.Shards = append(n.options.Shards, added[0])
	return address(added[0].OperatorPort), n.startShard(ctx, added[0])
}
