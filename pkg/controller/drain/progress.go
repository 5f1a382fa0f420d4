// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// maxNamed is how many blocked drains a summary names.
const maxNamed = 3

// progress is what the status of other objects says about drains.
type progress struct {
	mu       sync.Mutex
	drains   map[cache.ObjectName]ongoing
	handlers []func(shard, group, instanceID string)
}

// ongoing is a drain that is not acknowledged. Its message is empty while nothing
// blocks it.
type ongoing struct {
	group, message string
}

func newProgress() *progress { return &progress{drains: make(map[cache.ObjectName]ongoing)} }

// AddHandler adds a function that is called when Summary of a group, or OfInstance
// of an instance, has changed. It must be quick. Add handlers before Run.
func (c *Controller) AddHandler(handler func(shard, group, instanceID string)) {
	c.progress.handlers = append(c.progress.handlers, handler)
}

// Summary tells how many instances of a group on a shard are being drained, how
// many of these drains are blocked, and by what. The message is empty when none
// is, and does not change as long as the same drains are blocked by the same.
func (c *Controller) Summary(shard, group string) (draining, blocked int, message string) {
	return c.progress.summary(shard, group)
}

// OfInstance tells whether an instance is being drained, and whether that is
// blocked and by what.
func (c *Controller) OfInstance(shard, id string) (blocked bool, message string, draining bool) {
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	drain, draining := c.progress.drains[cache.NewObjectName(shard, id)]
	return drain.message != "", drain.message, draining
}

func (p *progress) summary(shard, group string) (draining, blocked int, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var messages []string
	for key, drain := range p.drains {
		if key.Namespace != shard || drain.group != group {
			continue
		}
		draining++
		if drain.message != "" {
			messages = append(messages, drain.message)
		}
	}
	slices.Sort(messages)
	return draining, len(messages), named(messages)
}

// set notes that a drain goes on, and what blocks it.
func (p *progress) set(key cache.ObjectName, group string, blocked []blockage) {
	messages := make([]string, len(blocked))
	for i := range blocked {
		messages[i] = blocked[i].message
	}
	p.change(key, ongoing{group: group, message: named(messages)}, true)
}

// remove notes that a drain does not go on.
func (p *progress) remove(key cache.ObjectName) { p.change(key, ongoing{}, false) }

func (p *progress) change(key cache.ObjectName, after ongoing, is bool) {
	p.mu.Lock()
	before, was := p.drains[key]
	if was == is && before == after {
		p.mu.Unlock()
		return
	}
	if is {
		p.drains[key] = after
	} else {
		delete(p.drains, key)
	}
	p.count()
	p.mu.Unlock()

	for _, handler := range p.handlers {
		if was {
			handler(key.Namespace, before.group, key.Name)
		}
		if is && (!was || after.group != before.group) {
			handler(key.Namespace, after.group, key.Name)
		}
	}
}

// count sets the gauges. It is called with the lock.
func (p *progress) count() {
	blocked := 0
	for _, drain := range p.drains {
		if drain.message != "" {
			blocked++
		}
	}
	drains.WithLabelValues("running").Set(float64(len(p.drains) - blocked))
	drains.WithLabelValues("blocked").Set(float64(blocked))
}

// named is the first of messages, and how many there are besides.
func named(messages []string) string {
	more := len(messages) - maxNamed
	if more <= 0 {
		return strings.Join(messages, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(messages[:maxNamed], "; "), more)
}
