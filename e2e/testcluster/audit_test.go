// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/e2e/controlplane"
)

// A list without a watch after it counts as a read.
func TestReads(t *testing.T) {
	at := func(second int, verb, resource string) controlplane.Request {
		return controlplane.Request{Time: time.Unix(int64(second), 0), Verb: verb, Resource: resource}
	}
	get, list, relist := at(5, "get", "nodes"), at(6, "list", "pods"), at(7, "list", "nodes")
	assert.Equal(t, []controlplane.Request{get, list}, Reads([]controlplane.Request{
		at(1, "watch", "pods"), // it ended after the list
		get, list, relist,
		at(8, "watch", "nodes"),
		at(9, "patch", "nodes"), at(9, "get", "leases"),
	}))
}
