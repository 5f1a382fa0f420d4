// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"strings"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// Common returns what the orders for all managed instances of group have in
// common: no id, subnet or userdata, and of the arguments what has no template in
// it. A template may well give the same for all, but only when it is rendered for
// each.
func Common(group *groups.Group) instance.Spec {
	args, _ := literal(group.Args)
	return instance.Spec{
		Group:    group.Key,
		Template: group.Template,
		Kind:     group.Kind,
		Type:     group.Type,
		Args:     args.(map[string]any),
	}
}

// literal returns value without what would be rendered. It returns false when
// nothing is left.
func literal(value any) (any, bool) {
	switch value := value.(type) {
	case string:
		return value, !strings.Contains(value, "{{")
	case map[string]any:
		kept := make(map[string]any, len(value))
		for name, below := range value {
			if below, ok := literal(below); ok {
				kept[name] = below
			}
		}
		return kept, true
	case []any:
		kept := make([]any, len(value))
		for n := range value {
			below, ok := literal(value[n])
			if !ok {
				// A list that lacks an entry is another list.
				return nil, false
			}
			kept[n] = below
		}
		return kept, true
	default:
		return value, true
	}
}
