// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/tailscale/hujson"

	"nstance.dev/operator/pkg/server/instance"
)

// content are the changes of operators by tenant and group. Nobody changes it.
type content map[string]map[string]*stored

// with returns c with next under key, or with nothing there.
func (c content) with(key instance.GroupKey, next *stored) content {
	changed := maps.Clone(c)
	tenant := maps.Clone(c[key.Tenant])
	if next != nil {
		if tenant == nil {
			tenant = map[string]*stored{}
		}
		tenant[key.Group] = next
	} else {
		delete(tenant, key.Group)
	}
	if len(tenant) > 0 {
		changed[key.Tenant] = tenant
	} else {
		delete(changed, key.Tenant)
	}
	return changed
}

// file is the groups file, the only place where the content is kept.
type file struct {
	path string
}

// read returns nothing when there is no file yet.
func (f file) read() (content, error) {
	content := content{}
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return content, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the dynamic groups: %w", err)
	}
	standard, err := hujson.Standardize(data)
	if err != nil {
		return nil, fmt.Errorf("reading the dynamic groups in %s: %w", f.path, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(standard))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&content); err != nil {
		return nil, fmt.Errorf("reading the dynamic groups in %s: %w", f.path, err)
	}
	if content == nil {
		return nil, fmt.Errorf("reading the dynamic groups in %s: must be an object, not null", f.path)
	}
	return content, nil
}

// write replaces the file. When it returns nil the new content survives a loss
// of power; at any moment the file is either the old or the new one, whole.
func (f file) write(content content) error {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the dynamic groups: %w", err)
	}
	if err := replace(f.path, append(data, '\n')); err != nil {
		return fmt.Errorf("storing the dynamic groups: %w", err)
	}
	return nil
}

// replace has one caller at a time, so the temporary file has a fixed name and
// what a crash left of it is overwritten.
func replace(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := writeSynced(temporary, data); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	// The rename is an entry of the folder, which has to reach the disk too.
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
