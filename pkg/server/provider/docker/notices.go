// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/provider/docker/metadata"
)

const (
	// noticePeriod is the time from a notice to the termination, if the file has none. It is
	// that of AWS.
	noticePeriod = 2 * time.Minute
	// maxNotice is more than a notice has.
	maxNotice = 4 << 10
)

// noticeActions are those of AWS. The first is the default.
var noticeActions = []string{"terminate", "stop", "hibernate"}

// isCleanPath reports whether a path is absolute and has no redundant parts.
func isCleanPath(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

// Notice returns the notice of an instance, a file of its name in the folder of notices.
// A file is read at every request, so that a restart of the server loses nothing.
func (c *containers) Notice(i *metadata.Instance) (*metadata.Notice, error) {
	if c.notices == "" {
		return nil, nil
	}
	notice, err := readNotice(filepath.Join(c.notices, i.ID))
	if err != nil {
		return nil, fmt.Errorf("read the notice of instance %s: %w", i.ID, err)
	}
	return notice, nil
}

// readNotice reads a notice, nil if there is no file. An empty file is one too.
func readNotice(path string) (*metadata.Notice, error) {
	// Opening another kind of file could block.
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxNotice))
	if err != nil {
		return nil, err
	}
	content := struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}{Action: noticeActions[0], Time: info.ModTime().Add(noticePeriod)}
	if len(strings.TrimSpace(string(data))) > 0 {
		if err := json.Unmarshal(data, &content); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if !slices.Contains(noticeActions, content.Action) {
		return nil, fmt.Errorf("%s has the action %q, known are %s", path, content.Action, strings.Join(noticeActions, ", "))
	}
	return &metadata.Notice{Action: content.Action, Time: content.Time}, nil
}
