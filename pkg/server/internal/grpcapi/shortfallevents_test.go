// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"fmt"
	"testing"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// lacking is the shortfall of every group.
type lacking struct {
	missing int32
	message string
}

func (l *lacking) Of(*groups.Group, []instance.Instance) (missing int32, message string) {
	return l.missing, l.message
}

// TestShortfallEvents: each change of a shortfall is one event of the group, and refreshes
// without a change are none. An event without a watcher in between has the last one.
func TestShortfallEvents(t *testing.T) {
	c, s := newStatusCache()
	shortfall := &lacking{}
	c.shortfalls = shortfall
	s.resize(c, "workers", 3)
	w := c.watch("default")
	take := func() []string {
		return taken(w, func(event *nstancev1.GroupEvent) string {
			return fmt.Sprintf("%s of %d lacks %d: %s", event.Group.Key, event.Group.Size,
				event.Group.GetShortfall().GetMissing(), event.Group.GetShortfall().GetMessage())
		})
	}
	expectEvents(t, take(), "workers of 3 lacks 0: ")
	for _, step := range []struct {
		lacking
		want string
	}{
		{lacking{2, "out of capacity"}, "workers of 3 lacks 2: out of capacity"},
		{lacking{1, "out of capacity"}, "workers of 3 lacks 1: out of capacity"},
		{lacking{1, "quota is used up"}, "workers of 3 lacks 1: quota is used up"},
		{lacking{2, "quota is used up"}, "workers of 3 lacks 2: quota is used up"},
		{lacking{}, "workers of 3 lacks 0: "},
	} {
		*shortfall = step.lacking
		c.Refresh(key("workers"))
		expectEvents(t, take(), step.want)
		for range 100 {
			c.Refresh(key("workers"), key("workers"))
		}
		expectEvents(t, take())
	}
	// What changes together is one event.
	*shortfall = lacking{4, "out of capacity"}
	s.instances[key("workers")] = []instance.Instance{shown("a", instance.Running)}
	s.resize(c, "workers", 5)
	expectEvents(t, take(), "workers of 5 lacks 4: out of capacity")
	// A slow watcher gets the last one.
	for missing := range int32(4) {
		shortfall.missing = missing
		c.Refresh(key("workers"))
	}
	expectEvents(t, take(), "workers of 5 lacks 3: out of capacity")
}
