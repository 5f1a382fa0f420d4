// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

// MergeArgs merges layers of arguments; later layers win. Objects are merged
// member by member; everything else, arrays too, is replaced. The result shares no
// object with the layers, and is nil when it has no member.
func MergeArgs(layers ...map[string]any) map[string]any {
	merged := map[string]any{}
	for _, layer := range layers {
		mergeInto(merged, layer)
	}
	if len(merged) == 0 {
		return nil
	}
	return merged
}

func mergeInto(merged, layer map[string]any) {
	for name, value := range layer {
		object, isObject := value.(map[string]any)
		if !isObject {
			merged[name] = value
			continue
		}
		below, isObject := merged[name].(map[string]any)
		if !isObject {
			below = map[string]any{}
			merged[name] = below
		}
		mergeInto(below, object)
	}
}
