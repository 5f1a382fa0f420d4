// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// FormatVersion is the version of the format that this server writes. An object without a
// version has the first. It is increased by a change that a server must know to handle the
// object.
const FormatVersion = 1

// FormatVersionField is the field of an object that has its version. The first version is not
// written: servers from before the field reject it.
const FormatVersionField = "format_version"

// UnknownFields are the fields of an object that this server does not know, by name.
type UnknownFields map[string]json.RawMessage

// NewerFormatError means that an object has a newer format than this server.
type NewerFormatError struct {
	// Found is the version of the object.
	Found int
}

// Error implements error.
func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("the object has format version %d, and this server reads versions up to %d: "+
		"run a server that is as new as the one that wrote the object", e.Found, FormatVersion)
}

// CheckFormat returns a NewerFormatError if the object has a newer format than this server.
func CheckFormat(data []byte) error {
	var object struct {
		Version int `json:"format_version"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	if object.Version > FormatVersion {
		return &NewerFormatError{Found: object.Version}
	}
	return nil
}

// Decode decodes an object into a struct, and returns the fields that the struct lacks, or
// nil. T must not implement json.Unmarshaler.
func Decode[T any](data []byte) (T, UnknownFields, error) {
	var decoded T
	// Most objects have no other fields, and are decoded once.
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&decoded); err == nil && len(bytes.TrimSpace(data[strict.InputOffset():])) == 0 {
		return decoded, nil, nil
	}
	var lenient T
	var unknown UnknownFields
	if err := CheckFormat(data); err != nil {
		return lenient, nil, err
	}
	if err := json.Unmarshal(data, &lenient); err != nil {
		return lenient, nil, err
	}
	if err := json.Unmarshal(data, &unknown); err != nil {
		return lenient, nil, err
	}
	known := namesOf(reflect.TypeFor[T]())
	maps.DeleteFunc(unknown, func(name string, _ json.RawMessage) bool {
		// Package json ignores the case of names
		// (https://pkg.go.dev/encoding/json#Unmarshal).
		return name == FormatVersionField || slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) })
	})
	if len(unknown) == 0 {
		unknown = nil
	}
	return lenient, unknown, nil
}

// namesOf returns the names of the fields of a struct in JSON.
func namesOf(structure reflect.Type) []string {
	var names []string
	for _, field := range reflect.VisibleFields(structure) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.IsExported() && !field.Anonymous && name != "-" && name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Encode encodes a struct and the fields that it lacks. The struct must not implement
// json.Marshaler.
func Encode(value any, unknown UnknownFields) ([]byte, error) {
	data, err := json.Marshal(value)
	if err != nil || len(unknown) == 0 {
		return data, err
	}
	more, err := json.Marshal(unknown)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(data, []byte("{}")) {
		return more, nil
	}
	return slices.Concat(data[:len(data)-1], []byte(","), more[1:]), nil
}
