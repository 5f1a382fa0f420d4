// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func TestChoose(t *testing.T) {
	good := func(id string, machines int) candidate {
		return candidate{id: id, synced: true, reachable: true, hasGroup: true, machines: machines}
	}
	but := func(c candidate, change func(*candidate)) candidate {
		change(&c)
		return c
	}
	unread := but(good("unread", 0), func(c *candidate) { c.synced, c.hasGroup = false, false })
	away := but(good("away", 0), func(c *candidate) { c.reachable = false })
	without := but(good("without", 0), func(c *candidate) { c.hasGroup = false })
	tests := map[string]struct {
		named      string
		candidates []candidate
		want       string
		reason     string
		message    string
	}{
		"the one with the fewest machines":       {candidates: []candidate{good("a", 3), good("b", 1), good("c", 2)}, want: "b"},
		"of several the first by id":             {candidates: []candidate{good("c", 1), good("b", 1), good("a", 2)}, want: "b"},
		"none that is away":                      {candidates: []candidate{away, good("b", 9)}, want: "b"},
		"none without the group":                 {candidates: []candidate{without, good("b", 9)}, want: "b"},
		"none that was not read":                 {candidates: []candidate{unread, good("b", 9)}, want: "b"},
		"the one that is named, whatever it has": {named: "b", candidates: []candidate{good("a", 0), {id: "b"}}, want: "b"},
		"one that is named and not configured": {named: "z", candidates: []candidate{good("a", 0)},
			reason: v1beta1.ReasonUnknownShard, message: `shard "z" is not configured`},
		"not all were read": {candidates: []candidate{unread, away, without},
			reason: v1beta1.ReasonNotSynced, message: "no shard that was read so far can be used; not read yet: unread"},
		"all that have it are away": {candidates: []candidate{away, without},
			reason: v1beta1.ReasonNoShard, message: "no shard that has the group is connected; not connected: away"},
		"none has it": {candidates: []candidate{without}, reason: v1beta1.ReasonNoShard, message: "no shard has the group"},
		"no shards":   {reason: v1beta1.ReasonNoShard, message: "no shard has the group"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, wrong := choose(test.named, test.candidates)
			if got != test.want || (wrong != nil) != (test.reason != "") {
				t.Fatalf("got %q, %+v, want %q", got, wrong, test.want)
			}
			if wrong != nil && *wrong != (trouble{test.reason, test.message}) {
				t.Errorf("got %+v", *wrong)
			}
		})
	}
}
