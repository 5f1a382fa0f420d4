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
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/agent/atomicfile"
	"nstance.dev/operator/pkg/agent/names"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// current is the symbolic link to the version that applies.
	current = "..data"
	// nextLink is a link before it takes the place of another one.
	nextLink = "..next"
	// versionPrefix is what the names of the folders of versions begin with.
	versionPrefix = "..version-"
	// infoFile has the hash and the time of the patch of a version.
	infoFile = "..patch"
	// receivedFile has the names of the files of a version that patches had.
	receivedFile = "..received"
	// markerFile has the time of the last patch that was applied, in Unix milliseconds.
	markerFile = "write-files.last"
)

// Hashes stores the hash of the configuration that was applied last.
type Hashes interface {
	ConfigHash() (string, error)
	SetConfigHash(hash string) error
}

// Store is the folder of the received files. All files of one version are in a folder of
// their own. Each file that others read is a symbolic link through one link to this
// folder, so that renaming one link replaces all files in one moment. It is safe for
// concurrent use.
type Store struct {
	folder string
	mode   fs.FileMode
	hashes Hashes
	// step is called before each change on disk.
	step func()

	mu     sync.Mutex
	errors map[string]string
}

// Open returns the store in a folder, which it creates if there is none.
func Open(folder string, mode fs.FileMode, hashes Hashes) (*Store, error) {
	if err := atomicfile.MakeFolder(folder, mode); err != nil {
		return nil, err
	}
	return &Store{folder: folder, mode: mode, hashes: hashes, step: func() {}, errors: map[string]string{}}, nil
}

// Recover finishes or discards the patch during which the process before ended. After an
// error the store can be used: the next patch replaces all that could not be read.
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
		if names.ValidateFile(entry.Name()) != nil {
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

// Apply applies a complete patch that was made of the configuration with a hash, and reports
// whether the hash or an error differs from before. A patch of which a file was refused
// changes no file. Nor does one that cannot be written; if it was written and only the hash
// cannot be, the next start of the process stores it.
func (s *Store) Apply(patch *Patch, hash string) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.errors
	if len(patch.refused) > 0 {
		err := errors.Join(&RefusedError{Files: len(patch.refused)}, s.setErrors(patch.refused))
		return !maps.Equal(before, s.errors), err
	}
	// If it cannot be read it counts as another one.
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

// RefusedError is the error of a patch with files that cannot be accepted.
type RefusedError struct {
	// Files is their number.
	Files int
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the patch has %d files that are refused, nothing of it is applied", e.Files)
}

// finish stores the hash of the current version, removes the errors of the patches before
// it, and writes the marker, which is last. It changes nothing if that is already done.
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
