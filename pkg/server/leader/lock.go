// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Lock is the object in the storage that says which server leads (wire
// contract). Servers of other makes read and write the same fields.
type Lock struct {
	// LeaderID is the server that leads. It is empty after a leader has released
	// the lock.
	LeaderID string `json:"leaderID"`
	// ReleasedBy is the server that led until it released the lock.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// Reign is another whenever another server begins to lead than the one before,
	// also when that has become the leader and done nothing. It is empty in a lock
	// of a server of another make.
	Reign string `json:"reign,omitempty"`
	// Process is the process that wrote the lock, by a name of its own making. Two
	// that have one LeaderID by mistake can be told apart by it.
	Process string `json:"process,omitempty"`
	// LeaderAddr is where that server can be asked whether it leads, host:port.
	LeaderAddr string `json:"leaderAddr"`
	// LastUpdated is when the leader last wrote the lock by its own wall clock,
	// which may be wrong: it is for people to read, and nothing is decided by it.
	LastUpdated time.Time `json:"lastUpdated"`
}

// now returns the time of the wall clock as locks have it. That it passes makes
// every lock another, and so its etag.
func now() time.Time {
	return time.Now().UTC().Round(0)
}

func encodeLock(lock Lock) ([]byte, error) {
	data, err := json.Marshal(lock)
	if err != nil {
		return nil, fmt.Errorf("writing a lock: %w", err)
	}
	return data, nil
}

// parseLock refuses what no server writes. A lock without the field leaderID is
// not a released one: somebody edited it, and the leader may be alive.
func parseLock(data []byte) (Lock, error) {
	var read struct {
		LeaderID    *string   `json:"leaderID"`
		ReleasedBy  string    `json:"releasedBy"`
		Reign       string    `json:"reign"`
		Process     string    `json:"process"`
		LeaderAddr  string    `json:"leaderAddr"`
		LastUpdated time.Time `json:"lastUpdated"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return Lock{}, fmt.Errorf("reading a lock: %w", err)
	}
	if read.LeaderID == nil {
		return Lock{}, errors.New("reading a lock: leaderID is missing")
	}
	return Lock{LeaderID: *read.LeaderID, ReleasedBy: read.ReleasedBy, Reign: read.Reign, Process: read.Process, LeaderAddr: read.LeaderAddr, LastUpdated: read.LastUpdated}, nil
}
