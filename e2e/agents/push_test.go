// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/storage/file"
)

// secretValue is the content of a secret that machines receive as a file.
const secretValue = "hunter2-5b0c7f1e"

// patchLine is in the log of an agent once for each patch that it has applied.
const patchLine = "Applied a patch of files"

// pushedFiles returns files of all kinds.
func pushedFiles() object {
	return object{
		"app.env":     object{"kind": "env", "env": object{"ID": "{{.Instance.ID}}", "GENERATION": "{{.Vars.generation}}"}},
		"app.json":    object{"kind": "json", "json": object{"generation": "{{.Vars.generation}}", "on": true}},
		"text.json":   object{"kind": "string", "string": "{{.Vars.generation}}"},
		"token.json":  object{"kind": "secret", "source": "app/token"},
		"object.json": object{"kind": "storage", "source": "files/object"},
		"kubelet.crt": object{"kind": "certificate", "template": "kubelet", "key": object{"source": "agent", "name": "kubelet"}},
	}
}

// pushSettings returns settings with files for all machines.
func pushSettings() settings {
	return settings{
		files:        pushedFiles(),
		vars:         map[string]string{"generation": "0"},
		certificates: object{"kubelet": object{"kind": "client", "cn": "system:node:{{.Instance.ID}}"}},
	}
}

// addPushed adds the secret and the object in the storage whose contents are pushed as files.
func (s *shard) addPushed() {
	s.t.Helper()
	require.NoError(s.t, s.secrets.Create(s.t.Context(), "app/token", []byte(strconv.Quote(secretValue))))
	bucket, err := file.Open(s.bucket())
	require.NoError(s.t, err)
	_, err = bucket.Create(s.t.Context(), "files/object", []byte(`{}`))
	require.NoError(s.t, err)
}

// received returns the content of a file that an instance has received.
func (s *shard) received(id, name string) string {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.cloud.Folder(id), "recv", name))
	if !os.IsNotExist(err) {
		require.NoError(s.t, err)
	}
	return string(data)
}

// generation returns the generation of the files of an instance, empty if it has not received any.
// Files of two generations fail the test.
func (s *shard) generation(id string) string {
	s.t.Helper()
	folder, err := os.Readlink(filepath.Join(s.cloud.Folder(id), "recv", "..data"))
	if err != nil {
		return ""
	}
	read := func(name string) string { return s.received(id, filepath.Join(folder, name)) }
	text, env, encoded := read("text.json"), read("app.env"), read("app.json")
	if now, err := os.Readlink(filepath.Join(s.cloud.Folder(id), "recv", "..data")); err != nil || now != folder {
		return s.generation(id) // the folder may have been removed in between
	}
	assert.Equal(s.t, "GENERATION="+text+"\nID="+id+"\n", env, id)
	assert.Contains(s.t, encoded, `"generation": "`+text+`"`, id)
	return text
}

// push changes vars and files, a number of times, and waits until all machines have applied
// each change. It returns how long each machine took from each change.
func (s *shard) push(times int) []time.Duration {
	s.t.Helper()
	ids := s.cloud.Existing()
	s.untilApplied(ids)
	patches := map[string]int{}
	for _, id := range ids {
		patches[id] = s.patches(id)
		assert.Equal(s.t, strconv.Quote(secretValue), s.received(id, "token.json"), id)
		assert.Equal(s.t, "{}", s.received(id, "object.json"), id)
		assert.Contains(s.t, s.received(id, "kubelet.crt"), "BEGIN CERTIFICATE", id)
	}
	var took []time.Duration
	for n := range times {
		begin := time.Now()
		s.configure(func(s *settings) {
			s.vars = map[string]string{"generation": strconv.Itoa(n + 1)}
			s.files = pushedFiles()
			s.files[fmt.Sprintf("extra-%d.json", n)] = object{"kind": "string", "string": `"{{.Vars.generation}}"`}
		})
		s.untilApplied(ids)
		for _, id := range ids {
			assert.Equal(s.t, patches[id]+n+1, s.patches(id), "patches of %s", id)
			// The agent writes this file last.
			marker, err := os.Stat(filepath.Join(s.cloud.Folder(id), "recv", "write-files.last"))
			require.NoError(s.t, err)
			took = append(took, marker.ModTime().Sub(begin))
		}
	}
	return took
}

// patches returns how many patches an instance has applied.
func (s *shard) patches(id string) int {
	s.t.Helper()
	return s.lines(id, patchLine)
}

// untilApplied waits until all these instances have all files of the present settings.
func (s *shard) untilApplied(ids []string) {
	s.t.Helper()
	// Each check reads a thousand files.
	testcluster.EventuallyEvery(s.t, 500*time.Millisecond, timeout, "all machines apply the files", func(context.Context) error { return s.applied(ids) })
}

// applied returns nil when all these instances have all files of the present settings.
func (s *shard) applied(ids []string) error {
	waiting := 0
	for _, id := range ids {
		generation := s.generation(id)
		complete := generation == s.vars["generation"]
		for name := range s.files {
			complete = complete && s.received(id, name) != ""
		}
		// The files are visible before the patch is complete, which is logged last.
		hash, err := os.ReadFile(filepath.Join(s.cloud.Folder(id), "recv", "..data", "..patch"))
		if err != nil {
			waiting++
			continue
		}
		_, patch, _ := strings.Cut(string(hash), "\n")
		if complete = complete && s.lines(id, patch) > 0; !complete {
			waiting++
		}
	}
	if waiting > 0 {
		return fmt.Errorf("%d machines have not", waiting)
	}
	return nil
}
