// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/api"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
)

// readAgainAfter is how long a change of the configuration file may go unseen.
const readAgainAfter = 2 * time.Second

// configuration keeps the configuration in force like its file. A file that
// cannot be used changes nothing.
type configuration struct {
	path   string
	store  *groups.Store
	errors *api.Errors
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

// Refresh reads the file now. The error is one of reading it, wraps a
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

// follow looks at the file whenever ticks says so, until ctx ends. The content
// decides, not the time of the file, and neither how it got there.
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

// look reads the file. What is wrong is told when it is still so the next time:
// an editor may have been in the middle of writing.
func (c *configuration) look(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.read(ctx)
	if err == nil {
		c.suspected = ""
		return
	}
	if c.suspected == err.Error() {
		c.report(ctx, err)
	}
	c.suspected = err.Error()
}

// read is called with mu held, as is report.
func (c *configuration) read(ctx context.Context) error {
	source, err := config.Read(c.path)
	if err != nil {
		return err
	}
	if source.ETag == c.InForce().ETag {
		c.reported = ""
		return nil
	}
	// Also when the same was refused before: the groups may be others now.
	next, err := source.Parse()
	if err != nil {
		return err
	}
	if err := c.store.Reconfigure(ctx, next); err != nil {
		return fmt.Errorf("configuration %s:\n%w", c.path, err)
	}
	c.reported = ""
	klog.FromContext(ctx).Info("Put another configuration in force", "path", c.path, "etag", source.ETag)
	c.changed()
	return nil
}

func (c *configuration) report(ctx context.Context, err error) {
	if c.reported == err.Error() {
		return
	}
	c.reported = err.Error()
	klog.FromContext(ctx).Error(err, "The configuration stays as it was", "path", c.path)
	c.errors.ReportShard(err)
}
