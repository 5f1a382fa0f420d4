// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// The message lists the groups that there are, and these come and go.
func TestUnknownGroupIsToldOnce(t *testing.T) {
	var told complaints
	pod := types.UID("one")
	if !told.isNew(pod, *unknownGroup("a", []string{"b"})) {
		t.Error("not told")
	}
	if told.isNew(pod, *unknownGroup("a", []string{"b", "c"})) {
		t.Error("told again because another group came")
	}
	if !told.isNew(pod, *unknownGroup("d", []string{"b", "c"})) {
		t.Error("not told of another group that there is not")
	}
}
