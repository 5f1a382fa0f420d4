// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FieldManager is the field manager of everything that nstance-operator writes.
const FieldManager = "nstance-operator"

// OperatorOwnsSpec reports whether FieldManager owns fields of the spec of an object that it has
// created, or changed with a patch. Fields that it applies do not count: they stay its own.
func OperatorOwnsSpec(entries []metav1.ManagedFieldsEntry) bool {
	return slices.ContainsFunc(entries, func(entry metav1.ManagedFieldsEntry) bool {
		fields, err := decodeOwned(entry)
		return err == nil && fields[fieldSpec] != nil
	})
}

// DisownSpec returns the managed fields of an object without the fields of the spec that
// OperatorOwnsSpec means. It returns nil if nothing would be left: an object without managed
// fields belongs to the manager before-first-apply, with which everybody has conflicts
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields).
func DisownSpec(entries []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range entries {
		fields, err := decodeOwned(entry)
		if err != nil {
			return nil, err
		}
		if fields[fieldSpec] != nil {
			delete(fields, fieldSpec)
			if len(fields) == 0 {
				continue
			}
			raw, err := json.Marshal(fields)
			if err != nil {
				return nil, fmt.Errorf("encode the fields of manager %q: %w", entry.Manager, err)
			}
			entry.FieldsV1 = metav1.NewFieldsV1(string(raw))
		}
		kept = append(kept, entry)
	}
	return kept, nil
}

// fieldSpec is the name of the spec in managed fields.
const fieldSpec = "f:spec"

// decodeOwned returns the fields of an entry of OperatorOwnsSpec by name, nil for other entries.
// It decodes only what may have a spec, because it is called for every change of every object.
func decodeOwned(entry metav1.ManagedFieldsEntry) (map[string]json.RawMessage, error) {
	if entry.Manager != FieldManager || entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.Subresource != "" ||
		!bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"`+fieldSpec+`"`)) {
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
		return nil, fmt.Errorf("decode the fields of manager %q: %w", entry.Manager, err)
	}
	return fields, nil
}
