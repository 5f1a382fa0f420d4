// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/provider"
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
	for _, id := range slices.Sorted(maps.Keys(c.targets)) {
		c.print("  instance %s, provider id %q, as a target of load balancers\n", id, c.targets[id].ProviderID)
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
	// An instance is removed also if it could not be deregistered: it costs more.
	deregistered := c.deregister(ctx)
	if err := errors.Join(c.session.remove(ctx, slices.Sorted(maps.Keys(c.existing))), deregistered); err != nil {
		return err
	}
	if err := c.restartWithoutKnowledge(ctx); err != nil {
		return err
	}
	// What is listed now is removed by the next attempt.
	return c.noteMissing(ctx)
}

// confirm waits until a provider that knows nothing finds no instance of a check, and notes
// that none exists.
func (c *check) confirm(ctx context.Context) error {
	if err := c.restartWithoutKnowledge(ctx); err != nil {
		return err
	}
	err := c.session.await(ctx, "", func() (bool, error) {
		list, err := c.session.instances()
		return len(list) == 0, err
	})
	return errors.Join(err, c.noteMissing(ctx))
}

// restartWithoutKnowledge is restart, and the provider is not given what exists.
func (c *check) restartWithoutKnowledge(ctx context.Context) error {
	known := c.existing
	c.existing = nil
	defer func() { c.existing = known }()
	return c.restart(ctx)
}

// noteMissing notes that no instance exists, or returns an error that names those that do.
func (c *check) noteMissing(ctx context.Context) error {
	list, err := c.session.instances()
	for _, vm := range list {
		c.existing[vm.ID] = vm
		err = errors.Join(err, fmt.Errorf("instance %s is listed, %s", vm.ID, vm.ProviderID))
	}
	if finder, can := c.session.Provider.(provider.Finder); can && err == nil {
		for _, id := range slices.Sorted(maps.Keys(c.existing)) {
			vm, found, findErr := finder.Find(ctx, id)
			if found {
				findErr = fmt.Errorf("instance %s is found, %s", id, vm.ProviderID)
			}
			err = errors.Join(err, findErr)
		}
	}
	if err == nil {
		clear(c.existing)
	}
	return err
}
