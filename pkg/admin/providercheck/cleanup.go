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

// cleanupRetryDelay is the delay between two attempts to clean up.
const cleanupRetryDelay = 5 * time.Second

// cleanUp removes all instances that may exist, even if ctx is done, and prints the instances
// that it could not remove.
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

// removeAll removes the instances with the session that requested them, which knows of
// pending requests, and confirms the removal with a new session.
func (c *check) removeAll(ctx context.Context) error {
	if c.session == nil || c.hasUnknown() {
		if err := c.restart(ctx); err != nil {
			return err
		}
	}
	// If an instance cannot be deregistered, or something else cannot be removed, it is removed
	// nevertheless, because it costs more.
	deregistered := c.deregister(ctx)
	var answers error
	if c.examined {
		_, answers = c.removeAnswers(ctx)
	}
	if err := errors.Join(c.removeWithSession(ctx, slices.Sorted(maps.Keys(c.existing))), deregistered, answers); err != nil {
		return err
	}
	if err := c.restartWithoutKnowledge(ctx); err != nil {
		return err
	}
	// The next attempt removes instances that are listed now.
	return c.noteMissing(ctx)
}

// hasUnknown reports whether questions have requested instances that the session does not know.
func (c *check) hasUnknown() bool {
	for id := range c.existing {
		if _, known := c.session.Get(id); c.unlisted[id] && !c.gone[id] && !known {
			return true
		}
	}
	return false
}

// confirm waits until a new session finds no instances of a check, and then forgets them.
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

// restartWithoutKnowledge restarts without telling the provider which instances exist.
func (c *check) restartWithoutKnowledge(ctx context.Context) error {
	known := c.existing
	c.existing = nil
	defer func() { c.existing = known }()
	return c.restart(ctx)
}

// noteMissing forgets all instances if none exists. Otherwise the error names the existing
// instances.
func (c *check) noteMissing(ctx context.Context) error {
	list, err := c.session.instances()
	for _, vm := range list {
		c.existing[vm.ID] = vm
		delete(c.unlisted, vm.ID)
		delete(c.gone, vm.ID)
		err = errors.Join(err, fmt.Errorf("instance %s is listed, %s", vm.ID, vm.ProviderID))
	}
	if finder, can := c.session.Provider.(provider.Finder); can && err == nil {
		for _, id := range slices.Sorted(maps.Keys(c.existing)) {
			vm, found, findErr := finder.Find(ctx, id)
			if found {
				delete(c.gone, id)
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
