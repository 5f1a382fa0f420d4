// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"nstance.dev/operator/pkg/agent/internal/atomicfile"
)

// info describes the patch that created a version.
type info struct {
	hash    string
	applied time.Time
}

func (i *info) marker() string { return strconv.FormatInt(i.applied.UnixMilli(), 10) }

// readInfo returns nil if the file is missing: the version then has only files that existed
// before the first patch.
func readInfo(path string) (*info, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, hash, _ := strings.Cut(string(data), "\n")
	milliseconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &info{hash: hash, applied: time.UnixMilli(milliseconds)}, nil
}

// readReceived returns the names of the files of a version that came with patches. Other
// files existed before the first patch. The result is empty for a version of an agent that
// did not write the list.
func readReceived(version string) (map[string]bool, error) {
	received := map[string]bool{}
	if version == "" {
		return received, nil
	}
	data, err := os.ReadFile(filepath.Join(version, receivedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return received, nil
	}
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(string(data), "\n") {
		if name != "" {
			received[name] = true
		}
	}
	return received, nil
}

// currentVersion returns the folder of the current version, "" before the first version.
func (s *Store) currentVersion() (string, error) {
	target, err := os.Readlink(s.path(current))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return s.path(filepath.Base(target)), nil
}

// publish creates a version and makes it current. It contains the files of the patch, the
// existing files (paths by name), and the other files of the current version. If the patch
// is complete, files that only came with earlier patches are left out. If applied is nil,
// the version keeps the info of the current version.
func (s *Store) publish(patch *Patch, applied *info, existing map[string]string) error {
	files := patch.files
	before, err := s.currentVersion()
	if err != nil {
		return err
	}
	received, err := readReceived(before)
	if err != nil {
		return err
	}
	maps.DeleteFunc(received, func(name string, _ bool) bool { return existing[name] != "" })
	skipped := map[string]bool{infoFile: applied != nil, receivedFile: true}
	if patch.Complete {
		maps.Copy(skipped, received)
		clear(received)
	}
	for name := range files {
		received[name] = true
	}
	s.step()
	version, err := os.MkdirTemp(s.folder, versionPrefix)
	if err != nil {
		return err
	}
	if err := os.Chmod(version, atomicfile.FolderMode(s.mode)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s.step()
		if err := atomicfile.Create(filepath.Join(version, name), files[name].content, s.mode, files[name].modified); err != nil {
			return err
		}
	}
	for name, path := range existing {
		s.step()
		if err := os.Link(path, filepath.Join(version, name)); err != nil {
			return err
		}
	}
	if err := s.keep(before, version, skipped); err != nil {
		return err
	}
	s.step()
	list := strings.Join(slices.Sorted(maps.Keys(received)), "\n")
	if err := atomicfile.Create(filepath.Join(version, receivedFile), []byte(list), s.mode, time.Time{}); err != nil {
		return err
	}
	if applied != nil {
		s.step()
		content := applied.marker() + "\n" + applied.hash
		if err := atomicfile.Create(filepath.Join(version, infoFile), []byte(content), s.mode, time.Time{}); err != nil {
			return err
		}
	}
	if err := atomicfile.SyncFolder(version); err != nil {
		return err
	}
	// The links of new files are dangling until the version is current.
	for name := range files {
		if err := s.link(name); err != nil {
			return err
		}
	}
	return s.replaceLink(current, filepath.Base(version))
}

// keep links the files of the version before into the new version, except files that the
// new version has and skipped files.
func (s *Store) keep(before, version string, skipped map[string]bool) error {
	if before == "" {
		return nil
	}
	entries, err := os.ReadDir(before)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if skipped[entry.Name()] {
			continue
		}
		s.step()
		err := os.Link(filepath.Join(before, entry.Name()), filepath.Join(version, entry.Name()))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// link makes a file of the current version visible under its name.
func (s *Store) link(name string) error {
	target := current + "/" + name
	if present, err := os.Readlink(s.path(name)); err == nil && present == target {
		return nil
	}
	return s.replaceLink(name, target)
}

// replaceLink atomically creates or replaces a symbolic link.
func (s *Store) replaceLink(name, target string) error {
	s.step()
	if err := os.Remove(s.path(nextLink)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, s.path(nextLink)); err != nil {
		return err
	}
	s.step()
	if err := os.Rename(s.path(nextLink), s.path(name)); err != nil {
		return err
	}
	return atomicfile.SyncFolder(s.folder)
}

// adopt moves regular files that other programs have written into the folder, such as
// userdata, into the current version. Their content stays.
func (s *Store) adopt() error {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return err
	}
	existing := map[string]string{}
	for _, entry := range entries {
		if entry.Type().IsRegular() && validateFileName(entry.Name()) == nil {
			existing[entry.Name()] = s.path(entry.Name())
		}
	}
	if len(existing) == 0 {
		return nil
	}
	if err := s.publish(&Patch{}, nil, existing); err != nil {
		return err
	}
	for name := range existing {
		if err := s.link(name); err != nil {
			return err
		}
	}
	return nil
}

// removeDeadLinks removes links whose file is not in the current version: the version was
// discarded, or a complete patch has removed the file.
func (s *Store) removeDeadLinks() error {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := s.path(entry.Name())
		if target, err := os.Readlink(path); err != nil || !strings.HasPrefix(target, current+"/") {
			continue
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			s.step()
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeVersions removes all versions except the current version.
func (s *Store) removeVersions() error {
	version, err := s.currentVersion()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := s.path(entry.Name())
		if strings.HasPrefix(entry.Name(), versionPrefix) && path != version || entry.Name() == nextLink {
			s.step()
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}
