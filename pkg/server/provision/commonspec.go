// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"strings"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/provider"
)

// Common returns what the specs of all managed instances of group have in common:
// no id, subnet or userdata, and only arguments without a template. Whether a
// template gives the same for all is not known before it is rendered.
func Common(group *groups.Group) provider.Spec {
	args, _ := literal(group.Args)
	return provider.Spec{
		Group:    group.Key,
		Template: group.Template,
		Kind:     group.Kind,
		Type:     group.Type,
		Args:     args.(map[string]any),
	}
}

// literal returns value without strings that have a template. It returns false
// when nothing remains.
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
				// A list without one of its entries is a different list.
				return nil, false
			}
			kept[n] = below
		}
		return kept, true
	default:
		return value, true
	}
}
