// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// cleanupRetryDelay is the delay before the removal is tried again.
const cleanupRetryDelay = 5 * time.Second

// cleanUp removes all instances that may exist, whether or not ctx is done, and prints
// those that it could not remove.
func (c *check) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), c.cleanupTimeout, fmt.Errorf("it took longer than %s", c.cleanupTimeout))
	defer cancel()
	outer := c.stepTimeout
	c.stepTimeout = c.cleanupTimeout
	defer func() { c.stepTimeout = outer }()
	err := c.step(ctx, stepCleanUp, func(ctx context.Context) (string, error) {
		ids := slices.Sorted(maps.Keys(c.existing))
		for {
			err := c.removeAll(ctx)
			if err == nil {
				return fmt.Sprintf("%d", len(ids)), nil
			}
			select {
			case <-ctx.Done():
				return "", err
			case <-time.After(cleanupRetryDelay):
			}
		}
	})
	if err == nil {
		return nil
	}
	c.print("COULD NOT REMOVE, or not confirm that they do not exist:\n")
	for _, id := range slices.Sorted(maps.Keys(c.existing)) {
		c.print("  instance %s, provider id %q\n", id, c.existing[id].ProviderID)
	}
	c.print("They belong to shard %s of cluster %s. The next check removes them.\n", c.shard.ID, c.shard.ClusterID)
	return err
}

// removeAll removes the instances with the session in which they were requested, which
// knows what may still appear, and confirms it with another one.
func (c *check) removeAll(ctx context.Context) error {
	if c.session == nil {
		if err := c.restart(ctx); err != nil {
			return err
		}
	}
	if err := c.session.remove(ctx, slices.Sorted(maps.Keys(c.existing))); err != nil {
		return err
	}
	if err := c.restartWithoutKnowledge(ctx); err != nil {
		return err
	}
	// What is listed now is removed by the next attempt.
	return c.noteMissing(ctx)
}
