// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"path/filepath"
)

// GiveNotice announces the termination of a machine, as the file of a notice does.
func (n *Installation) GiveNotice(shardID, instanceID string, content []byte) error {
	path := filepath.Join(n.noticesDir(shardID), instanceID)
	if err := n.writeFile(path, content); err != nil {
		return fmt.Errorf("give instance %s a notice: %w", instanceID, err)
	}
	return nil
}

func (n *Installation) noticesDir(shardID string) string {
	return filepath.Join(n.dir, "notices", shardID)
}
