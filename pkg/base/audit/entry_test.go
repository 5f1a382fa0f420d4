// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package audit_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
)

// full is an entry with all fields.
var full = audit.Entry{
	Action: audit.ShrinkGroup, Shard: "a", Group: "workers", Instance: "i", Kind: "Machine", Name: "default/m", From: 3, To: 0,
	Generation: 4, Writer: "kubectl", Reason: "scale-down", DeleteAt: "then", Result: audit.Unknown, Err: errors.New("lost"), RequestID: "id",
}

func TestEntryHasAllKeys(t *testing.T) {
	log := audittest.NewLog()
	full.Log(log.Context(t.Context()))
	lines := log.Expect(t, "Audit: shrink group shard=a group=workers instance=i kind=Machine name=default/m from=3 to=0 generation=4"+
		" writer=kubectl reason=scale-down deleteAt=then result=unknown err=lost requestID=ID")
	require.Len(t, lines, 1)
	assert.Len(t, lines[0].Values, len(audit.Keys))
	assert.Equal(t, "id", lines[0].RequestID())
}

func TestEntryLeavesOutWhatIsNotSet(t *testing.T) {
	log := audittest.NewLog()
	audit.Entry{Action: audit.DeleteGroup, Group: "workers", To: int32(0)}.Log(log.Context(t.Context()))
	log.Expect(t, "Audit: delete group group=workers to=0")
}

// TestDocument: the documented messages and keys are those that are logged.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile("../../../docs/operations.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(data), "\n## Audit trail\n")
	require.True(t, found, "docs/operations.md has no section Audit trail")
	section, _, _ = strings.Cut(section, "\n## ")

	var messages, keys []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(Audit: [^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		messages = append(messages, row[1])
	}
	var want []string
	for _, action := range audit.Actions {
		want = append(want, string(action))
	}
	assert.Equal(t, want, messages)

	_, table, found := strings.Cut(section, "| key |")
	require.True(t, found)
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-zA-Z]+`(?:, )?)+) \\|").FindAllStringSubmatch(table, -1) {
		for _, key := range regexp.MustCompile("`([a-zA-Z]+)`").FindAllStringSubmatch(row[1], -1) {
			keys = append(keys, key[1])
		}
	}
	assert.Equal(t, audit.Keys, keys)
}
