// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package audit_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

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

// TestDocument expects the document to list exactly the messages and keys that are logged.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile("../../../docs/reference.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(data), "\n## Audit trail\n")
	require.True(t, found, "docs/reference.md has no section Audit trail")
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

func TestValidRequestID(t *testing.T) {
	for id, valid := range map[string]bool{
		"":                          false,
		"a":                         true,
		"A-1_b.2":                   true,
		strings.Repeat("a", 64):     true,
		strings.Repeat("a", 65):     false,
		"a b":                       false,
		"a\n":                       false,
		"a\" group=\"b":             false,
		"a=b":                       false,
		"\x1b[2J":                   false,
		"ä":                         false,
		"\xff":                      false,
		"a\u202eb":                  false,
		string(make([]byte, 1)):     false,
		audit.NewRequestID():        true,
		audit.NewRequestID() + "\r": false,
	} {
		assert.Equal(t, valid, audit.ValidRequestID(id), "%q", id)
	}
	assert.NotEqual(t, audit.NewRequestID(), audit.NewRequestID())
}

func FuzzValidRequestID(f *testing.F) {
	for _, seed := range []string{"", "a", "0f4b", "a\nI1123 \"Audit: delete group\"", strings.Repeat("x", 65), "\x00", "é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if !audit.ValidRequestID(id) {
			return
		}
		if len(id) == 0 || len(id) > 64 {
			t.Errorf("%q has %d bytes", id, len(id))
		}
		for _, c := range id {
			if c > unicode.MaxASCII || c != '-' && c != '_' && c != '.' && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
				t.Errorf("%q has %q", id, c)
			}
		}
	})
}

// TestEveryLineOfACallHasTheRequestID expects the id in lines outside of the audit trail,
// too.
func TestEveryLineOfACallHasTheRequestID(t *testing.T) {
	log := audittest.NewLog()
	ctx, id := audit.WithNewRequest(log.Context(t.Context()))
	assert.Equal(t, id, audit.RequestFrom(ctx).ID)
	klog.FromContext(ctx).V(4).Info("Other line")
	assert.Contains(t, log.Text(), id)
	assert.Empty(t, audit.RequestFrom(t.Context()))
}
