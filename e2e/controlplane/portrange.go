// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Ports are below the range from which the kernel takes the ports of outgoing connections
// (from 32768), so that none is taken before its server has started. Each process chooses
// from a part of them: two processes would choose one port sooner or later while none of
// their servers listens at it yet.
const (
	lowestPort  = 20000
	rangeLength = 500
	ranges      = 25
)

// portRange returns the lowest port of this process' part. The kernel releases the lock
// on it when the process exits.
var portRange = sync.OnceValues(func() (lowest int, err error) {
	for n := range ranges {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("nstance-e2e-ports-%d.lock", n))
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return 0, fmt.Errorf("reserve ports: %w", err)
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			// A file that is collected is closed.
			lockedRange = file
			return lowestPort + n*rangeLength, nil
		}
		_ = file.Close()
	}
	return 0, fmt.Errorf("reserve ports: %d processes have all of them", ranges)
})

// chosen are the ports that this process has chosen.
var chosen = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// lockedRange is the lock on the range of this process.
var lockedRange *os.File
