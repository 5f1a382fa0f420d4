// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"log"
	"slices"
	"time"
)

// roundInterval is the time between two comparisons of the copies.
const roundInterval = 500 * time.Millisecond

// keepCopies keeps every copy on the nodes that own it, until ctx is done.
func (n *node) keepCopies(ctx context.Context) error {
	tick := time.NewTicker(roundInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !n.members.ready() {
			continue
		}
		if err := n.round(ctx); err != nil && ctx.Err() == nil {
			log.Printf("comparing copies: %v", err)
		}
	}
}

// round sends each entry to the nodes that own it, and removes those of partitions that this
// node does not own once all owners have them. It counts if it is complete.
func (n *node) round(ctx context.Context) error {
	active := n.members.active()
	parts := n.volume.byPartition()
	byOwner := map[member][]entry{}
	for partition, entries := range parts {
		for _, owner := range ownersOf(partition, active, n.replicas) {
			byOwner[owner] = append(byOwner[owner], entries...)
		}
	}
	var errs []error
	failed := map[member]bool{}
	for owner, entries := range byOwner {
		if err := n.put(ctx, owner, entries); err != nil {
			errs = append(errs, err)
			failed[owner] = true
		}
	}
	var foreign []entry
	for partition, entries := range parts {
		owners := ownersOf(partition, active, n.replicas)
		kept := slices.ContainsFunc(owners, func(o member) bool { return failed[o] || o.Name == n.members.self.Name })
		if !kept && len(owners) == n.replicas {
			foreign = append(foreign, entries...)
		}
	}
	if len(foreign) > 0 {
		errs = append(errs, n.volume.drop(foreign))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	n.rounds.add()
	return nil
}
