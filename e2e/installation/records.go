// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// Records returns the instances that a shard has stored (docs/server.md#records).
func (n *Installation) Records(shardID string) ([]instance.Record, error) {
	folder := filepath.Join(n.Bucket(), filepath.FromSlash(storage.InstancePrefix(shardID)))
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // before the first instance
	}
	if err != nil {
		return nil, fmt.Errorf("list the instances of shard %s: %w", shardID, err)
	}
	var records []instance.Record
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".json" {
			continue // being written
		}
		data, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since it was listed
		}
		var record instance.Record
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			return nil, fmt.Errorf("read the instance in %s: %w", entry.Name(), err)
		}
		records = append(records, record)
	}
	return records, nil
}
