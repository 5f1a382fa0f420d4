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

	"nstance.dev/operator/pkg/agent/atomicfile"
)

const (
	// errorsFolder has a file with the reason for each file that was refused.
	errorsFolder = "errors"
	// maxErrorName is the longest name of a file for an error. Longer ones are hashed.
	maxErrorName = 200
)

// loadErrors reads the reasons for files that were refused before the process started.
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

// setErrors replaces the reasons. They are reported even if they cannot be written.
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

// errorName returns the name of the file for the error of a file, whose own name may be one
// that is refused.
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
