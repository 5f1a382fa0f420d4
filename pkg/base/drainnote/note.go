// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drainnote has the note of the event with which the operator records the start of
// a drain. The plugin of kubectl reads it again: reason and deadline of a drain are in no
// object.
package drainnote

import (
	"fmt"
	"regexp"
	"time"
)

// Reason is the reason of the event.
const Reason = "DrainStarted"

// Note is what the shard has announced of a drain.
type Note struct {
	// Shard is the id of the shard, Instance the id of the instance on the shard.
	Shard, Instance string
	// Reason is the shard's reason to delete the instance.
	Reason string
	// DeleteAt is when the shard deletes the instance in any case, by its own clock. It is
	// zero if the shard has not reported it.
	DeleteAt time.Time
}

// String returns the text of the event.
func (n Note) String() string {
	text := fmt.Sprintf("draining for the deletion of instance %s on shard %s, reason %s", n.Instance, n.Shard, n.Reason)
	if !n.DeleteAt.IsZero() {
		text += ", at the latest at " + n.DeleteAt.UTC().Format(time.RFC3339)
	}
	return text
}

var pattern = regexp.MustCompile(`^draining for the deletion of instance (\S+) on shard (\S+), reason ([^,]*?)(?:, at the latest at (\S+))?$`)

// Parse reads the text of an event, and reports whether it is one of String.
func Parse(text string) (Note, bool) {
	found := pattern.FindStringSubmatch(text)
	if found == nil {
		return Note{}, false
	}
	note := Note{Instance: found[1], Shard: found[2], Reason: found[3]}
	if found[4] != "" {
		at, err := time.Parse(time.RFC3339, found[4])
		if err != nil {
			return Note{}, false
		}
		note.DeleteAt = at
	}
	return note, true
}
