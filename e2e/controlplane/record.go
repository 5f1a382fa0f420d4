// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// record is the content of components/NAME.json: how a component is run, and the process
// that was started last.
type record struct {
	Spec
	// Sequence is the component's place in the order of starting.
	Sequence int       `json:"sequence"`
	Process  processID `json:"process"`
}

// Components returns the components on record below dir in the order they
// were started in. They may belong to another program or have exited.
func Components(dir string) ([]*Component, error) {
	paths, err := filepath.Glob(recordPath(dir, "*"))
	if err != nil {
		return nil, err
	}
	var found []*Component
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		r, err := readRecord(dir, name)
		if err != nil {
			return nil, err
		}
		found = append(found, &Component{Spec: r.Spec, dir: dir, sequence: r.Sequence})
	}
	slices.SortFunc(found, func(a, b *Component) int { return cmp.Compare(a.sequence, b.sequence) })
	return found, nil
}

func recordPath(dir, name string) string { return filepath.Join(dir, "components", name+".json") }
func pidPath(dir, name string) string    { return filepath.Join(dir, "pids", name) }
func logPath(dir, name string) string    { return filepath.Join(dir, "logs", name+".log") }

func readRecord(dir, name string) (record, error) {
	var r record
	data, err := os.ReadFile(recordPath(dir, name))
	if err != nil {
		return r, fmt.Errorf("read the record of %s: %w", name, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read the record of %s: %w", name, err)
	}
	return r, nil
}

// write stores the record, and the bare process id beside it for use in shells.
func (r record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(recordPath(dir, r.Name), append(data, '\n')); err != nil {
		return fmt.Errorf("record %s: %w", r.Name, err)
	}
	if err := replaceFile(pidPath(dir, r.Name), []byte(strconv.Itoa(r.Process.PID)+"\n")); err != nil {
		return fmt.Errorf("record %s: %w", r.Name, err)
	}
	return nil
}

func removePID(dir, name string) error {
	if err := os.Remove(pidPath(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// replaceFile writes path so that a reader never sees half of it. The file is
// readable by its owner only: arguments and environments may be private.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// logTail returns the last lines that were written to the log behind offset,
// for an error message.
func logTail(path string, offset int64) string {
	const lines, maxBytes = 15, 16 << 10
	file, err := os.Open(path)
	if err != nil {
		return "log: " + path
	}
	defer file.Close()
	if end, err := file.Seek(0, io.SeekEnd); err == nil {
		_, _ = file.Seek(max(offset, end-maxBytes), io.SeekStart)
	}
	data, _ := io.ReadAll(file)
	tail := strings.Split(strings.TrimSpace(string(data)), "\n")
	tail = tail[max(0, len(tail)-lines):]
	return fmt.Sprintf("last lines of %s:\n  %s", path, strings.Join(tail, "\n  "))
}
