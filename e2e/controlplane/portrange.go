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
		// An os.File is closed when it is collected.
		file, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return 0, fmt.Errorf("reserve ports: open %s: %w", path, err)
		}
		if unix.Flock(file, unix.LOCK_EX|unix.LOCK_NB) == nil {
			return lowestPort + n*rangeLength, nil
		}
		_ = unix.Close(file)
	}
	return 0, fmt.Errorf("reserve ports: %d processes have all of them", ranges)
})

// chosen are the ports that this process has chosen.
var chosen = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}
