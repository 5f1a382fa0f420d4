// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/agent/internal/atomicfile"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// current is the symbolic link to the current version.
	current = "..data"
	// nextLink is a new link before it is renamed to its place.
	nextLink = "..next"
	// versionPrefix is the prefix of the folders of versions.
	versionPrefix = "..version-"
	// infoFile has the hash and the time of the patch of a version.
	infoFile = "..patch"
	// receivedFile lists the files of a version that came with patches.
	receivedFile = "..received"
	// markerFile has the time of the last patch that was applied, in Unix milliseconds.
	markerFile = "write-files.last"
)

// Hashes stores the hash of the configuration that was applied last.
type Hashes interface {
	ConfigHash() (string, error)
	SetConfigHash(hash string) error
}

// Store is the folder of the received files. Each version of the files has a subfolder.
// Each visible file is a symbolic link through the link "..data", so that renaming this
// link replaces all files at once, as the kubelet does for volumes
// (https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/util/atomic_writer.go).
// It is safe for concurrent use.
type Store struct {
	folder string
	mode   fs.FileMode
	hashes Hashes
	// step is called before each change on disk. Tests kill the process in it.
	step func()

	mu     sync.Mutex
	errors map[string]string
}

// Open returns the store in a folder. It creates a missing folder.
func Open(folder string, mode fs.FileMode, hashes Hashes) (*Store, error) {
	if err := atomicfile.MakeFolder(folder, mode); err != nil {
		return nil, err
	}
	return &Store{folder: folder, mode: mode, hashes: hashes, step: func() {}, errors: map[string]string{}}, nil
}

// Recover finishes or discards the patch during which the process before ended. After an
// error the store can still be used: the next patch replaces everything that could not be
// read.
func (s *Store) Recover() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(s.loadErrors(), s.recover()); err != nil {
		return fmt.Errorf("recover the received files: %w", err)
	}
	return nil
}

// Status returns the state of each received file by name.
func (s *Store) Status() (map[string]*nstancev1.FileStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := map[string]*nstancev1.FileStatus{}
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return nil, fmt.Errorf("list the received files: %w", err)
	}
	for _, entry := range entries {
		if validateFileName(entry.Name()) != nil {
			continue
		}
		info, err := os.Stat(s.path(entry.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			status[entry.Name()] = failed(err.Error())
		case info.Mode().IsRegular():
			status[entry.Name()] = &nstancev1.FileStatus{
				Status: &nstancev1.FileStatus_LastModified{LastModified: timestamppb.New(info.ModTime())},
			}
		}
	}
	for name, reason := range s.errors {
		status[name] = failed(reason)
	}
	return status, nil
}

func failed(reason string) *nstancev1.FileStatus {
	return &nstancev1.FileStatus{Status: &nstancev1.FileStatus_Error{Error: reason}}
}

// Apply applies a patch of the configuration with a hash, and reports whether the hash or
// the errors changed. A patch with a refused file, and a patch that cannot be written,
// change no file. If the files were written and only the hash could not be stored, the next
// process stores it.
func (s *Store) Apply(patch *Patch, hash string) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.errors
	if len(patch.refused) > 0 {
		err := errors.Join(&RefusedError{Files: len(patch.refused)}, s.setErrors(patch.refused))
		return !maps.Equal(before, s.errors), err
	}
	// A hash that cannot be read counts as changed.
	hashBefore, _ := s.hashes.ConfigHash()
	if err := s.write(patch, hash); err != nil {
		reasons := map[string]string{}
		for name := range patch.files {
			reasons[name] = "the patch could not be applied: " + err.Error()
		}
		err = errors.Join(err, s.setErrors(reasons), s.removeVersions())
		return !maps.Equal(before, s.errors), err
	}
	return hash != hashBefore || len(before) > 0, s.removeVersions()
}

func (s *Store) write(patch *Patch, hash string) error {
	if err := s.adopt(); err != nil {
		return err
	}
	if err := s.publish(patch, &info{hash: hash, applied: time.Now()}, nil); err != nil {
		return err
	}
	if err := s.removeDeadLinks(); err != nil {
		return err
	}
	return s.finish()
}

// RefusedError is returned for a patch with refused files.
type RefusedError struct {
	// Files is the number of refused files.
	Files int
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the patch has %d files that are refused, nothing of it is applied", e.Files)
}

// finish stores the hash of the current version, removes the errors of earlier patches, and
// writes the marker last. It changes nothing if the marker exists.
func (s *Store) finish() error {
	version, err := s.currentVersion()
	if err != nil || version == "" {
		return err
	}
	applied, err := readInfo(filepath.Join(version, infoFile))
	if err != nil || applied == nil {
		return err
	}
	if hash, err := s.hashes.ConfigHash(); err != nil || hash != applied.hash {
		s.step()
		if err := s.hashes.SetConfigHash(applied.hash); err != nil {
			return err
		}
	}
	marker := applied.marker()
	if present, err := os.ReadFile(s.path(markerFile)); err == nil && string(present) == marker {
		return nil
	}
	s.step()
	if err := s.setErrors(nil); err != nil {
		return err
	}
	s.step()
	return atomicfile.Write(s.path(markerFile), []byte(marker), s.mode)
}

// recover brings the folder into the state after a patch, or before it.
func (s *Store) recover() error {
	if err := atomicfile.RemoveTemporary(s.folder); err != nil {
		return err
	}
	if err := s.finish(); err != nil {
		return err
	}
	if err := s.removeVersions(); err != nil {
		return err
	}
	return s.removeDeadLinks()
}

func (s *Store) path(name string) string {
	return filepath.Join(s.folder, name)
}

const (
	// errorsFolder has a file with the reason for each refused file.
	errorsFolder = "errors"
	// maxErrorName is the longest name of a file in errorsFolder. Longer names are hashed.
	maxErrorName = 200
)

// loadErrors reads the reasons for refused files that an earlier process wrote.
func (s *Store) loadErrors() error {
	s.errors = map[string]string{}
	entries, err := os.ReadDir(s.path(errorsFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", s.path(errorsFolder), err)
	}
	for _, entry := range entries {
		name, err := url.PathUnescape(entry.Name())
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.path(errorsFolder), entry.Name()))
		if err != nil {
			return err
		}
		s.errors[strings.ToValidUTF8(name, "?")] = strings.ToValidUTF8(strings.TrimSpace(string(text)), "?")
	}
	return nil
}

// setErrors replaces the reasons. They are reported even if writing them fails.
func (s *Store) setErrors(reasons map[string]string) error {
	s.errors = maps.Clone(reasons)
	folder := s.path(errorsFolder)
	if len(reasons) == 0 {
		return os.RemoveAll(folder)
	}
	if err := atomicfile.MakeFolder(folder, s.mode); err != nil {
		return err
	}
	var wrong []error
	written := map[string]bool{}
	for name, reason := range reasons {
		written[errorName(name)] = true
		wrong = append(wrong, atomicfile.Write(filepath.Join(folder, errorName(name)), []byte(reason+"\n"), s.mode))
	}
	entries, err := os.ReadDir(folder)
	wrong = append(wrong, err)
	for _, entry := range entries {
		if !written[entry.Name()] {
			wrong = append(wrong, os.RemoveAll(filepath.Join(folder, entry.Name())))
		}
	}
	return errors.Join(wrong...)
}

// errorName returns the name of the error file of a file. The name of the file itself may
// be invalid.
func errorName(name string) string {
	escaped := url.PathEscape(name)
	if strings.HasPrefix(escaped, ".") {
		escaped = "%2E" + escaped[1:]
	}
	if escaped == "" || len(escaped) > maxErrorName {
		sum := sha256.Sum256([]byte(name))
		return hex.EncodeToString(sum[:])
	}
	return escaped
}
