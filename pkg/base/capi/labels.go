// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"encoding/base64"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// LabelValue returns the value of Cluster API's labels for an object with a name: the
// name, or a hash of it if the name is not a valid label value. The label
// cluster.x-k8s.io/pool-name and all its selectors need this value
// (docs/capi.md#labels).
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return "hash_" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)) + "_z"
}
