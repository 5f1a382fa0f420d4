// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLeaving(t *testing.T) {
	order := []Ordered{{"old", "config-drift"}, {"a", ""}, {"b", ""}, {"c", ""}}
	for name, test := range map[string]struct {
		removeFirst []string
		n           int
		want        string
		exact       bool
	}{
		"nothing":                       {nil, 0, "[]", true},
		"more instances than the size":  {nil, -1, "[]", true},
		"the first":                     {nil, 2, "[old a]", true},
		"candidates before others":      {[]string{"c", "b"}, 2, "[b c]", true},
		"and then the others":           {[]string{"c"}, 2, "[c old]", true},
		"more than are known":           {nil, 5, "[old a b c]", false},
		"a candidate that is replaced":  {[]string{"old"}, 1, "[old]", true},
		"the youngest may leave for it": {[]string{"old"}, 2, "[old a]", false},
		"a candidate that is not known": {[]string{"x"}, 1, "[old]", false},
	} {
		t.Run(name, func(t *testing.T) {
			leaving, exact := Leaving(order, test.removeFirst, test.n)
			ids := []string{}
			for _, instance := range leaving {
				ids = append(ids, instance.ID)
			}
			assert.Equal(t, test.want, fmt.Sprint(ids))
			assert.Equal(t, test.exact, exact)
		})
	}
}
