// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// maxListed is the maximum number of blocked drains that a summary lists.
const maxListed = 3

// progress is the state of drains that other controllers report in status.
type progress struct {
	metrics  *metrics
	handlers []func(shard, group, instance string)

	mu     sync.Mutex
	drains map[Key]drainProgress
}

// drainProgress is the state of a drain that is not acknowledged. message is empty
// while the drain is not blocked.
type drainProgress struct {
	group, message string
}

func newProgress(metrics *metrics) *progress {
	return &progress{metrics: metrics, drains: make(map[Key]drainProgress)}
}

// AddHandler adds a function that is called when the result of Summary or
// OfInstance has changed. It must return quickly. Add handlers before Run.
func (c *Controller) AddHandler(handler func(shard, group, instance string)) {
	c.progress.handlers = append(c.progress.handlers, handler)
}

// Summary returns how many instances of a group on a shard are being drained, how
// many of these drains are blocked, and by what. The message is empty if none is
// blocked. It changes only when a drain becomes blocked or unblocked or is blocked
// for another reason.
func (c *Controller) Summary(shard, group string) (draining, blocked int, message string) {
	p := c.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	var messages []string
	for key, drain := range p.drains {
		if key.Shard != shard || drain.group != group {
			continue
		}
		draining++
		if drain.message != "" {
			messages = append(messages, drain.message)
		}
	}
	slices.Sort(messages)
	return draining, len(messages), summarize(messages)
}

// OfInstance reports whether an instance is being drained, and whether the drain is
// blocked and by what.
func (c *Controller) OfInstance(shard, id string) (blocked bool, message string, draining bool) {
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	drain, draining := c.progress.drains[Key{Shard: shard, Instance: id}]
	return drain.message != "", drain.message, draining
}

// set stores that a drain is in progress, and its blockages.
func (p *progress) set(key Key, group string, blockages []blockage) {
	messages := make([]string, len(blockages))
	for i := range blockages {
		messages[i] = blockages[i].message
	}
	p.update(key, &drainProgress{group: group, message: summarize(messages)})
}

// remove stores that a drain is not in progress.
func (p *progress) remove(key Key) { p.update(key, nil) }

// update replaces the state of a drain, nil for none, and calls the handlers if it
// has changed.
func (p *progress) update(key Key, after *drainProgress) {
	p.mu.Lock()
	before, existed := p.drains[key]
	if existed == (after != nil) && (after == nil || before == *after) {
		p.mu.Unlock()
		return
	}
	if after != nil {
		p.drains[key] = *after
	} else {
		delete(p.drains, key)
	}
	p.updateMetrics()
	p.mu.Unlock()

	for _, handler := range p.handlers {
		if existed {
			handler(key.Shard, before.group, key.Instance)
		}
		if after != nil && (!existed || after.group != before.group) {
			handler(key.Shard, after.group, key.Instance)
		}
	}
}

// updateMetrics sets the gauges. mu must be locked.
func (p *progress) updateMetrics() {
	blocked := 0
	for _, drain := range p.drains {
		if drain.message != "" {
			blocked++
		}
	}
	p.metrics.setDrains(len(p.drains)-blocked, blocked)
}

// summarize joins the first messages and the number of the others.
func summarize(messages []string) string {
	more := len(messages) - maxListed
	if more <= 0 {
		return strings.Join(messages, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(messages[:maxListed], "; "), more)
}
