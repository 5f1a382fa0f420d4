// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// record is what a server stores of an instance, and a restart does not lose.
type record struct {
	CreatedAt time.Time
	// ProviderID is set once the provider has reported it. If the provider does not know
	// the instance then, it is missing.
	ProviderID string
	Deleted    bool
}

// records is a folder with the records of all instances.
type records string

func (r records) path(id string) string { return filepath.Join(string(r), id+".json") }

// The prefixes of files that say that there was an instance, and that one was missing.
const (
	everPrefix    = "ever-"
	missingPrefix = "missing-"
)

// note creates a file that says something of an instance.
func (r records) note(prefix, id string) error {
	return os.WriteFile(filepath.Join(string(r), prefix+id), nil, 0o600)
}

// noted returns the instances that have a file with a prefix.
func (r records) noted(prefix string) []string {
	paths, _ := filepath.Glob(filepath.Join(string(r), prefix+"*")) // the pattern is valid
	var ids []string
	for _, path := range paths {
		ids = append(ids, strings.TrimPrefix(filepath.Base(path), prefix))
	}
	return ids
}

// write stores a record, and that there was an instance.
func (r records) write(id string, one record) error {
	data, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if err := r.note(everPrefix, id); err != nil {
		return err
	}
	temporary := r.path(id) + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, r.path(id))
}

func (r records) remove(id string) error { return os.Remove(r.path(id)) }

func (r records) read() (map[string]record, error) {
	paths, err := filepath.Glob(filepath.Join(string(r), "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]record{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var one record
		if err := json.Unmarshal(data, &one); err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = one
	}
	return all, nil
}
