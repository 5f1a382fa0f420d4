// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Lock is the object in the storage that names the leader. Other
// implementations of the server read and write the same fields
// (docs/server.md#leader-election).
type Lock struct {
	// LeaderID is the id of the server that leads. It is empty after a leader
	// has released the lock.
	LeaderID string `json:"leaderID"`
	// ReleasedBy is the id of the server that led until it released the lock.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// LeadershipID changes whenever another server becomes the leader, even if
	// that server does nothing. It is empty in locks of other implementations.
	LeadershipID string `json:"reign,omitempty"`
	// Process is a random name of the process that wrote the lock. It
	// distinguishes two processes that use the same LeaderID by mistake.
	Process string `json:"process,omitempty"`
	// LeaderAddr is the host:port of the leader's health endpoint.
	LeaderAddr string `json:"leaderAddr"`
	// LastUpdated is when the leader last wrote the lock, by its own wall
	// clock. The clock may be wrong: the field is for people, and no decision
	// depends on it.
	LastUpdated time.Time `json:"lastUpdated"`
}

// now returns the wall clock time in the form that locks store. Because it
// differs with every write, the etag of the lock does too.
func now() time.Time {
	return time.Now().UTC().Round(0)
}

func encodeLock(lock Lock) ([]byte, error) {
	data, err := json.Marshal(lock)
	if err != nil {
		return nil, fmt.Errorf("encode the lock: %w", err)
	}
	return data, nil
}

// parseLock rejects what no server writes. A lock without the field leaderID
// was not released but edited by hand, and its leader may be alive.
func parseLock(data []byte) (Lock, error) {
	var read struct {
		LeaderID     *string   `json:"leaderID"`
		ReleasedBy   string    `json:"releasedBy"`
		LeadershipID string    `json:"reign"`
		Process      string    `json:"process"`
		LeaderAddr   string    `json:"leaderAddr"`
		LastUpdated  time.Time `json:"lastUpdated"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return Lock{}, fmt.Errorf("decode the lock: %w", err)
	}
	if read.LeaderID == nil {
		return Lock{}, errors.New("decode the lock: leaderID is missing")
	}
	return Lock{LeaderID: *read.LeaderID, ReleasedBy: read.ReleasedBy, LeadershipID: read.LeadershipID, Process: read.Process, LeaderAddr: read.LeaderAddr, LastUpdated: read.LastUpdated}, nil
}
