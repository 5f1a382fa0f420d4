// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Writer is who has set a field, as the managed fields of its object say.
type Writer struct {
	// Manager is the field manager, a name that the client chooses.
	Manager string
	At      time.Time
}

// WriterOf returns the last writer of a field, and whether there is one: a write through the
// scale subresource of a custom resource, and a default, have none. path are the keys of
// the managed fields, such as "f:spec", "f:replicas".
func WriterOf(object metav1.Object, path ...string) (Writer, bool) {
	var last Writer
	found := false
	for _, entry := range object.GetManagedFields() {
		if !owns(entry.FieldsV1.GetRawBytes(), path) {
			continue
		}
		writer := Writer{Manager: entry.Manager}
		if entry.Time != nil {
			writer.At = entry.Time.Time
		}
		if !found || writer.At.After(last.At) {
			last, found = writer, true
		}
	}
	return last, found
}

// owns reports whether encoded managed fields contain a field.
func owns(fields []byte, path []string) bool {
	for _, key := range path {
		var children map[string]json.RawMessage
		if json.Unmarshal(fields, &children) != nil {
			return false
		}
		child, ok := children[key]
		if !ok {
			return false
		}
		fields = child
	}
	return true
}
