// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provision"
)

// TestAFileHasALimit, because one message has the whole file.
func TestAFileHasALimit(t *testing.T) {
	var content []byte
	r := &Renderer{
		Facts:  func(*groups.Group, *instance.Record) provision.FileFacts { return provision.FileFacts{} },
		Object: func(context.Context, string) ([]byte, error) { return content, nil },
	}
	group := &groups.Group{Files: map[string]config.File{"a.json": {Kind: config.FileStorage, Content: map[string]any{"source": "a"}}}}
	content = bytes.Repeat([]byte("1"), 1<<20)
	patch, err := r.patch(t.Context(), group, &instance.Record{}, nil)
	require.NoError(t, err)
	assert.Equal(t, []File{{Name: "a.json", Content: content}}, patch.Files)
	content = append(content, '1')
	_, err = r.patch(t.Context(), group, &instance.Record{}, nil)
	assert.EqualError(t, err, "make file a.json: it has 1048577 bytes, at most 1048576 are allowed")
}
