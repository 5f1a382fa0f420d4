// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

// Source is the text of a configuration at one time.
type Source struct {
	// Key is the key of the object in the storage, or the path of the file.
	Key string
	// Data is its content.
	Data []byte
	// ETag changes whenever Data does.
	ETag string
	// LastModified is when the object or the file was written, or zero if that is not known.
	LastModified time.Time
}

// Read reads the configuration of a shard. The error wraps storage.ErrNotFound if the shard
// has no configuration.
func Read(ctx context.Context, store storage.Store, shard string) (Source, error) {
	key := storage.ConfigKey(shard)
	object, err := store.Get(ctx, key)
	if err != nil {
		return Source{}, fmt.Errorf("read the configuration of shard %s: %w", shard, err)
	}
	return Source{Key: key, Data: object.Data, ETag: object.ETag, LastModified: object.LastModified}, nil
}

// ReadChanged is Read for a caller that has the configuration with an etag. changed is false if it is
// the current one.
func ReadChanged(ctx context.Context, store storage.Store, shard, etag string) (source Source, changed bool, err error) {
	key := storage.ConfigKey(shard)
	object, err := storage.GetChanged(ctx, store, key, etag)
	if errors.Is(err, storage.ErrUnchanged) {
		return Source{}, false, nil
	}
	if err != nil {
		return Source{}, false, fmt.Errorf("read the configuration of shard %s: %w", shard, err)
	}
	return Source{Key: key, Data: object.Data, ETag: object.ETag, LastModified: object.LastModified}, true, nil
}

// ReadFile reads a configuration from a file.
func ReadFile(path string) (Source, error) {
	source, err := readFile(path)
	if err != nil {
		return Source{}, fmt.Errorf("read the configuration: %w", err)
	}
	return source, nil
}

func readFile(path string) (Source, error) {
	file, err := os.Open(path)
	if err != nil {
		return Source{}, err
	}
	info, statErr := file.Stat()
	data, readErr := io.ReadAll(file)
	if err := errors.Join(statErr, readErr, file.Close()); err != nil {
		return Source{}, err
	}
	sum := sha256.Sum256(data)
	return Source{Key: path, Data: data, ETag: hex.EncodeToString(sum[:]), LastModified: info.ModTime()}, nil
}

// Parse returns the configuration of the source, or an error that names the
// source and wraps an *InvalidError.
func (s Source) Parse(providers provider.Registry) (*Config, error) {
	config, err := Parse(s.Data, providers)
	if err != nil {
		return nil, s.reject(err)
	}
	config.Source = s
	return config, nil
}

// Reject returns an error that names the source and wraps an *InvalidError with the mistakes, or nil
// without mistakes.
func (s Source) Reject(mistakes field.ErrorList) error {
	if err := join(nil, mistakes); err != nil {
		return s.reject(&InvalidError{Mistakes: err})
	}
	return nil
}

// reject returns an error that names the source, and the lines of the mistakes.
func (s Source) reject(err error) error {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		err = &InvalidError{Mistakes: s.locate(invalid.Mistakes)}
	}
	return fmt.Errorf("configuration %s:\n%w", s.Key, err)
}

// locate adds the lines to mistakes in fields.
func (s Source) locate(mistakes error) error {
	lines := jsonc.NewLines(s.Data)
	if lines == nil {
		return mistakes // the error has the line
	}
	var all []error
	for _, mistake := range flatten(mistakes) {
		if invalid, ok := errors.AsType[*field.Error](mistake); ok {
			mistake = &locatedMistake{mistake, lines.Of(invalid.Field)}
		}
		all = append(all, mistake)
	}
	return errors.Join(all...)
}

// locatedMistake is a mistake with its line in the text.
type locatedMistake struct {
	error
	line int
}

func (m *locatedMistake) Error() string { return fmt.Sprintf("%s (line %d)", m.error, m.line) }

func (m *locatedMistake) Unwrap() error { return m.error }

// ParseFor is Parse, and rejects the configuration of any other shard.
func (s Source) ParseFor(shard string, providers provider.Registry) (*Config, error) {
	config, err := s.Parse(providers)
	if err == nil && config.Shard.ID != shard {
		mistake := field.Invalid(field.NewPath("shard", "id"), config.Shard.ID, fmt.Sprintf("must be %q", shard))
		return nil, s.reject(&InvalidError{Mistakes: mistake})
	}
	return config, err
}

// InvalidError rejects a configuration.
type InvalidError struct {
	// Mistakes has every mistake, one per line, each with its path, its value and the allowed
	// values. A Source adds the line in its text.
	Mistakes error
}

// Error lists the mistakes.
func (e *InvalidError) Error() string {
	return e.Mistakes.Error()
}

// Parse reads and validates a configuration, which names one of providers. The
// error is an *InvalidError.
func Parse(data []byte, providers provider.Registry) (*Config, error) {
	var shapeErrs field.ErrorList
	root, err := jsonc.Parse(data, &shapeErrs)
	if err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	config := readConfig(root, providers)
	if err := join(shapeErrs, config.validate(providers)); err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	return config, nil
}

// join returns all errors as one. A field of the wrong type is reported as such: rules that
// it or a field in it breaks are left out.
func join(shapeErrs, ruleErrs field.ErrorList) error {
	reported := make(map[string]bool, len(shapeErrs))
	errs := make([]error, 0, len(shapeErrs)+len(ruleErrs))
	for _, err := range shapeErrs {
		reported[err.Field] = true
		errs = append(errs, err)
	}
	for _, err := range ruleErrs {
		if !within(err.Field, reported) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// within reports whether path or a parent of it is one of paths.
func within(path string, paths map[string]bool) bool {
	for end, char := range path {
		if (char == '.' || char == '[') && paths[path[:end]] {
			return true
		}
	}
	return paths[path]
}

// ReadAccepted reads the configuration of a shard that its leader put in force last. The
// error wraps storage.ErrNotFound if no leader has put one in force.
func ReadAccepted(ctx context.Context, store storage.Store, shard string) (Source, error) {
	key := storage.AcceptedKey(shard)
	object, err := store.Get(ctx, key)
	if err != nil {
		return Source{}, fmt.Errorf("read the accepted configuration of shard %s: %w", shard, err)
	}
	return Source{Key: key, Data: object.Data, ETag: object.ETag, LastModified: object.LastModified}, nil
}

// Accept stores that the leader of a shard has put a configuration in force. It writes
// nothing if the same configuration is stored already.
func Accept(ctx context.Context, store storage.Store, shard string, source Source) error {
	before, err := ReadAccepted(ctx, store, shard)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		_, err = store.Create(ctx, storage.AcceptedKey(shard), source.Data)
	case err == nil && !bytes.Equal(before.Data, source.Data):
		_, err = store.Replace(ctx, storage.AcceptedKey(shard), source.Data, before.ETag)
	}
	if err != nil {
		return fmt.Errorf("store the accepted configuration: %w", err)
	}
	return nil
}

// For returns err as a tenant may see it: mistakes that concern only other tenants are
// counted but not shown. An error that wraps no *InvalidError is returned unchanged.
func For(tenant string, err error) error {
	invalid, ok := errors.AsType[*InvalidError](err)
	if !ok {
		return err
	}
	var own []error
	others := 0
	for _, mistake := range flatten(invalid.Mistakes) {
		if owner := tenantOf(mistake); owner == "" || owner == tenant {
			own = append(own, mistake)
		} else {
			others++
		}
	}
	if others == 0 {
		return err
	}
	own = append(own, fmt.Errorf("%d mistakes of other tenants", others))
	// The errors that wrap the mistakes name only the object.
	prefix, _, _ := strings.Cut(err.Error(), invalid.Error())
	return &visibleError{prefix: prefix, invalid: &InvalidError{Mistakes: errors.Join(own...)}}
}

// visibleError is an *InvalidError with a prefix.
type visibleError struct {
	prefix  string
	invalid *InvalidError
}

func (e *visibleError) Error() string { return e.prefix + e.invalid.Error() }

func (e *visibleError) Unwrap() error { return e.invalid }

// TenantMistake is a mistake that concerns one tenant.
type TenantMistake struct {
	Tenant  string
	Mistake error
}

func (m *TenantMistake) Error() string { return m.Mistake.Error() }

func (m *TenantMistake) Unwrap() error { return m.Mistake }

// flatten returns the errors that were joined.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, err := range joined.Unwrap() {
		all = append(all, flatten(err)...)
	}
	return all
}

// tenantOf returns the tenant that a mistake concerns, "" for all.
func tenantOf(mistake error) string {
	if of, ok := errors.AsType[*TenantMistake](mistake); ok {
		return of.Tenant
	}
	invalid, ok := errors.AsType[*field.Error](mistake)
	if !ok {
		return ""
	}
	path, found := strings.CutPrefix(invalid.Field, groupsField+".")
	if !found {
		return ""
	}
	tenant, _, _ := strings.Cut(path, ".")
	return tenant
}

// groupsField is the key of the static groups by tenant.
const groupsField = "groups"
