// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/api"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/storage"
)

// readAgainAfter is how long a change of the configuration may go unseen.
const readAgainAfter = 2 * time.Second

// configuration keeps the configuration in force like the one in the storage. One
// that cannot be used changes nothing.
type configuration struct {
	storage storage.Store
	server  *Server
	store   *groups.Store
	errors  *api.Errors
	// changed is called after another configuration has been put in force.
	changed func()

	// mu serialises reading. It guards what follows.
	mu sync.Mutex
	// suspected is what was wrong when follow looked last, "" for nothing.
	suspected string
	// reported is what was wrong when that was last told. It is told once.
	reported string
}

var _ api.Configuration = (*configuration)(nil)

// InForce returns what the configuration in force was read from.
func (c *configuration) InForce() config.Source {
	return c.store.Config().Source
}

// Refresh reads the configuration now. The error is one of reading it, wraps a
// *config.InvalidError, or is one of the storage.
func (c *configuration) Refresh(ctx context.Context) (before, after config.Source, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.InForce()
	if err := c.read(ctx); err != nil {
		c.report(ctx, err)
		return before, before, err
	}
	return before, c.InForce(), nil
}

// follow looks at the configuration whenever ticks says so, until ctx ends. The
// content decides, not the time when it was written.
func (c *configuration) follow(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			c.look(ctx)
		}
	}
}

// look reads the configuration. What is wrong is told when it is still so the next time:
// an editor may have been in the middle of writing.
func (c *configuration) look(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.read(ctx)
	if err == nil {
		c.suspected = ""
		return
	}
	if c.suspected == trouble(err) {
		c.report(ctx, err)
	}
	c.suspected = trouble(err)
}

// trouble returns what tells one error from another. All that keeps a
// configuration from being read is one: a storage may give each failure a number.
func trouble(err error) string {
	if _, invalid := errors.AsType[*config.InvalidError](err); invalid {
		return err.Error()
	}
	return "not read"
}

// read is called with mu held, as is report.
func (c *configuration) read(ctx context.Context) error {
	source, err := config.Read(ctx, c.storage, c.server.Shard)
	if err != nil {
		return err
	}
	if source.ETag == c.InForce().ETag {
		c.reported = ""
		return nil
	}
	// Also when the same was refused before: the groups may be others now.
	next, err := source.ParseFor(c.server.Shard)
	if err != nil {
		return err
	}
	if err := c.store.Reconfigure(ctx, next); err != nil {
		return fmt.Errorf("configuration %s:\n%w", source.Key, err)
	}
	c.reported = ""
	klog.FromContext(ctx).Info("Put another configuration in force", "etag", source.ETag)
	c.changed()
	return nil
}

func (c *configuration) report(ctx context.Context, err error) {
	if c.reported == trouble(err) {
		return
	}
	c.reported = trouble(err)
	klog.FromContext(ctx).Error(err, "The configuration stays as it was")
	c.errors.ReportShard(err)
}
