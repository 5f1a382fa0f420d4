// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// versions are the first folders of all paths. They have the same content. AWS has more of
// them; these are what cloud-init queries.
var versions = []string{"2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "latest"}

// Paths in meta-data of a termination notice.
const (
	pathAction          = "spot/instance-action"
	pathTerminationTime = "spot/termination-time"
)

// actionTerminate is the action of a notice with a termination time.
const actionTerminate = "terminate"

// content returns what is at a path.
func (s *service) content(ctx context.Context, i *Instance, path string) (content []byte, found bool, err error) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return []byte(strings.Join(versions, "\n")), true, nil
	}
	version, path, _ := strings.Cut(path, "/")
	if !slices.Contains(versions, version) {
		return nil, false, nil
	}
	switch category, rest, _ := strings.Cut(path, "/"); category {
	case "":
		return []byte("meta-data\nuser-data"), true, nil
	case "user-data":
		if rest != "" {
			return nil, false, nil
		}
		content, err = s.source.Userdata(ctx, i)
		return content, content != nil, err
	case "meta-data":
		values, err := s.values(i)
		if err != nil {
			return nil, false, err
		}
		text, found := lookUp(values, rest)
		return []byte(text), found, nil
	default:
		return nil, false, nil
	}
}

// values returns the entries of meta-data by path. Those of a notice exist only with one.
func (s *service) values(i *Instance) (map[string]string, error) {
	notice, err := s.source.Notice(i)
	if err != nil || notice == nil {
		return i.Values, err
	}
	values := maps.Clone(i.Values)
	at := notice.Time.UTC().Format(time.RFC3339)
	action, err := json.Marshal(struct {
		Action string `json:"action"`
		Time   string `json:"time"`
	}{notice.Action, at})
	if err != nil {
		return nil, fmt.Errorf("encode the notice of instance %s: %w", i.ID, err)
	}
	values[pathAction] = string(action)
	if notice.Action == actionTerminate {
		values[pathTerminationTime] = at
	}
	return values, nil
}

// lookUp returns a value, or the names in a folder, those of folders with a slash.
func lookUp(values map[string]string, path string) (text string, found bool) {
	if value, found := values[path]; found {
		return value, true
	}
	folder := strings.TrimSuffix(path, "/")
	if folder != "" {
		folder += "/"
	}
	names := map[string]bool{}
	for entry := range values {
		if name, ok := strings.CutPrefix(entry, folder); ok {
			first, _, isFolder := strings.Cut(name, "/")
			if isFolder {
				first += "/"
			}
			names[first] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), "\n"), len(names) > 0
}
