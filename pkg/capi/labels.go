// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"encoding/base64"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// LabelValue is the value by which labels of Cluster API refer to an object of
// this name: the name itself, or a hash of it when the name cannot be a label
// value, such as one of more than 63 characters. Label cluster.x-k8s.io/pool-name
// must have it, as must every selector for that label (CAPI contract).
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return "hash_" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)) + "_z"
}
