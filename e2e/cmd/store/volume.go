// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"
)

// entry is a key with its value. The entry of a key with the highest version counts.
type entry struct {
	Key, Value string
	Version    int64
}

// volume stores the entries of a node in a file with an entry on each line. The last entry
// of a key counts.
type volume struct {
	dir string

	mu      sync.Mutex
	file    *os.File
	entries map[string]entry
}

// volumeSize is the reported size of a volume, in bytes. The size of the file system is the
// size of the disk of the machine.
const volumeSize = 1 << 30

func openVolume(dir string) (*volume, error) {
	v := &volume{dir: dir, entries: map[string]entry{}}
	if err := v.read(); err != nil {
		return nil, err
	}
	return v, v.rewrite()
}

func (v *volume) path() string { return filepath.Join(v.dir, "entries") }

func (v *volume) read() error {
	file, err := os.Open(v.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			log.Printf("the last line was not written completely: %v", err)
			break
		}
		v.entries[e.Key] = e
	}
	return lines.Err()
}

// rewrite replaces the file with the present entries.
func (v *volume) rewrite() error {
	next, err := os.Create(v.path() + ".new")
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(next)
	for _, e := range v.entries {
		if err := encoder.Encode(e); err != nil {
			return errors.Join(err, next.Close())
		}
	}
	if err := next.Sync(); err != nil {
		return errors.Join(err, next.Close())
	}
	if err := os.Rename(next.Name(), v.path()); err != nil {
		return errors.Join(err, next.Close())
	}
	if v.file != nil {
		_ = v.file.Close()
	}
	v.file = next
	return nil
}

// put stores the entries that are newer than the stored entries, and returns their number when they
// are on disk.
func (v *volume) put(entries ...entry) (stored int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	encoder := json.NewEncoder(v.file)
	for _, e := range entries {
		if e.Version <= v.entries[e.Key].Version {
			continue
		}
		if err := encoder.Encode(e); err != nil {
			return stored, err
		}
		v.entries[e.Key] = e
		stored++
	}
	if stored == 0 {
		return 0, nil
	}
	return stored, v.file.Sync()
}

// size returns how many bytes are used.
func (v *volume) size() (int64, error) {
	info, err := os.Stat(v.path())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (v *volume) get(key string) (entry, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, found := v.entries[key]
	return e, found
}

// byPartition returns the entries of each partition that is not empty.
func (v *volume) byPartition() map[int][]entry {
	v.mu.Lock()
	defer v.mu.Unlock()
	parts := map[int][]entry{}
	for _, e := range v.entries {
		parts[partitionOf(e.Key)] = append(parts[partitionOf(e.Key)], e)
	}
	return parts
}

// drop removes entries that have not changed.
func (v *volume) drop(entries []entry) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range entries {
		if v.entries[e.Key] == e {
			delete(v.entries, e.Key)
		}
	}
	return v.rewrite()
}
