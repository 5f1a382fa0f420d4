// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package audit_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
)

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

// TestEveryLineOfACallHasTheRequestID: also lines that are not of the audit trail.
func TestEveryLineOfACallHasTheRequestID(t *testing.T) {
	log := audittest.NewLog()
	ctx, id := audit.WithNewRequest(log.Context(t.Context()))
	assert.Equal(t, id, audit.RequestFrom(ctx).ID)
	klog.FromContext(ctx).V(4).Info("Other line")
	assert.Contains(t, log.Text(), id)
	assert.Empty(t, audit.RequestFrom(t.Context()))
}
