// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// The message lists the groups that there are, and these come and go.
func TestUnknownGroupIsRecordedOnce(t *testing.T) {
	var recorded rejections
	pod := types.UID("one")
	if !recorded.isNew(pod, *unknownGroup("a", []string{"b"})) {
		t.Error("not recorded")
	}
	if recorded.isNew(pod, *unknownGroup("a", []string{"b", "c"})) {
		t.Error("recorded again because of a new group")
	}
	if !recorded.isNew(pod, *unknownGroup("d", []string{"b", "c"})) {
		t.Error("another unknown group is not recorded")
	}
}
