// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/agent/internal/identity"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const instanceID = "knc06bgm7733st2576nx5jht4ecjw"

// machine is the folder of an agent.
type machine struct {
	t        testing.TB
	folder   string
	identity *identity.Identity
}

func newMachine(t testing.TB, folder string) *machine {
	t.Helper()
	id, err := identity.Open(filepath.Join(folder, "identity"), 0o600, instanceID)
	require.NoError(t, err)
	return &machine{t, folder, id}
}

func (m *machine) received() string { return filepath.Join(m.folder, "recv") }

func (m *machine) open() *Store {
	m.t.Helper()
	s, err := recovered(m.folder, m.identity, func() {})
	require.NoError(m.t, err)
	return s
}

// recovered returns the store of a process that has just started.
func recovered(folder string, id *identity.Identity, step func()) (*Store, error) {
	s, err := Open(filepath.Join(folder, "recv"), 0o640, id)
	if err != nil {
		return nil, err
	}
	s.step = step
	return s, s.Recover()
}

// content returns the visible files by name, without the marker.
func (m *machine) content() map[string]string {
	m.t.Helper()
	content := map[string]string{}
	entries, err := os.ReadDir(m.received())
	require.NoError(m.t, err)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") || entry.IsDir() || entry.Name() == markerFile {
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.received(), entry.Name()))
		if os.IsNotExist(err) {
			continue // a link of a file that does not exist yet
		}
		require.NoError(m.t, err)
		content[entry.Name()] = string(data)
	}
	return content
}

func (m *machine) hash() string {
	m.t.Helper()
	hash, err := m.identity.ConfigHash()
	require.NoError(m.t, err)
	return hash
}

func (m *machine) marker() string {
	m.t.Helper()
	data, err := os.ReadFile(filepath.Join(m.received(), markerFile))
	if !os.IsNotExist(err) {
		require.NoError(m.t, err)
	}
	return string(data)
}

// patchOf returns a patch of files with content.
func patchOf(files map[string]string) *Patch {
	patch := &Patch{}
	for name, content := range files {
		patch.Add(&nstancev1.FileTransfer{Filename: name, Content: []byte(content), LastModified: timestamppb.New(modified)})
	}
	return patch
}

func apply(t testing.TB, s *Store, hash string, files map[string]string) {
	t.Helper()
	require.NoError(t, applyPatch(s, hash, files))
}

func TestAppliedPatchIsVisible(t *testing.T) {
	m := newMachine(t, t.TempDir())
	s := m.open()
	first := map[string]string{"a.env": "A=1\n", "b.json": "{}"}
	apply(t, s, "one", first)
	assert.Equal(t, first, m.content())
	assert.Equal(t, "one", m.hash())
	assert.NotEmpty(t, m.marker())

	// Files that a patch does not have stay.
	apply(t, s, "two", map[string]string{"a.env": "A=2\n", "c.json": "[]"})
	want := map[string]string{"a.env": "A=2\n", "b.json": "{}", "c.json": "[]"}
	assert.Equal(t, want, m.content())
	assert.Equal(t, "two", m.hash())

	for _, name := range []string{"a.env", "b.json", "c.json"} {
		info, err := os.Stat(filepath.Join(m.received(), name))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o640), info.Mode(), name)
		assert.True(t, info.ModTime().Equal(modified), "%s is of %s", name, info.ModTime())
	}
	info, err := os.Stat(filepath.Join(m.received(), markerFile))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode())
	assert.Equal(t, 1, m.versions(), "versions that do not apply any more are removed")

	status, err := s.Status()
	require.NoError(t, err)
	require.Len(t, status, 3)
	assert.True(t, status["b.json"].GetLastModified().AsTime().Equal(modified))
}

func (m *machine) versions() int {
	m.t.Helper()
	found, err := filepath.Glob(filepath.Join(m.received(), versionPrefix+"*"))
	require.NoError(m.t, err)
	return len(found)
}

// A group without files has a hash all the same.
func TestPatchWithoutFilesStoresTheHash(t *testing.T) {
	m := newMachine(t, t.TempDir())
	s := m.open()
	apply(t, s, "one", nil)
	assert.Equal(t, "one", m.hash())
	assert.NotEmpty(t, m.marker())
}

func TestFilesOfUserdataAreKeptAndReplaced(t *testing.T) {
	m := newMachine(t, t.TempDir())
	m.open()
	for _, name := range []string{"a.env", "b.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(m.received(), name), []byte("userdata"), 0o600))
	}
	s := m.open()
	status, err := s.Status()
	require.NoError(t, err)
	assert.Len(t, status, 2)
	apply(t, s, "one", map[string]string{"a.env": "A=1"})
	assert.Equal(t, map[string]string{"a.env": "A=1", "b.json": "userdata"}, m.content())
	apply(t, m.open(), "two", map[string]string{"a.env": "A=2"})
	assert.Equal(t, map[string]string{"a.env": "A=2", "b.json": "userdata"}, m.content())
}

func TestCompletePatchRemovesWhatItLacks(t *testing.T) {
	m := newMachine(t, t.TempDir())
	m.open()
	userdata := func(name string) {
		require.NoError(t, os.WriteFile(filepath.Join(m.received(), name), []byte("userdata"), 0o600))
	}
	userdata("own.json")
	apply(t, m.open(), "one", map[string]string{"a.env": "A=1", "b.json": "1", "c.json": "1", "d.json": "1"})

	// A patch without the field complete removes nothing.
	s := m.open()
	apply(t, s, "two", map[string]string{"a.env": "A=2"})
	assert.Equal(t, map[string]string{"a.env": "A=2", "b.json": "1", "c.json": "1", "d.json": "1", "own.json": "userdata"}, m.content())

	// Another program has taken d.json since.
	require.NoError(t, os.Remove(filepath.Join(m.received(), "d.json")))
	userdata("d.json")
	applyComplete := func(s *Store, hash string, files map[string]string) {
		t.Helper()
		patch := patchOf(files)
		patch.Complete = true
		_, err := s.Apply(patch, hash)
		require.NoError(t, err)
	}
	applyComplete(m.open(), "three", map[string]string{"c.json": "3"})
	assert.Equal(t, map[string]string{"c.json": "3", "d.json": "userdata", "own.json": "userdata"}, m.content())
	status, err := s.Status()
	require.NoError(t, err)
	assert.Len(t, status, 3)
	for _, name := range []string{"a.env", "b.json"} {
		_, err := os.Lstat(filepath.Join(m.received(), name))
		assert.ErrorIs(t, err, fs.ErrNotExist, "the link is removed too")
	}

	// A refused patch removes nothing. A complete patch without files removes all received
	// files.
	refused := patchOf(map[string]string{"e.json": "{"})
	refused.Complete = true
	_, err = s.Apply(refused, "bad")
	require.Error(t, err)
	assert.Len(t, m.content(), 3)
	applyComplete(s, "four", nil)
	assert.Equal(t, map[string]string{"d.json": "userdata", "own.json": "userdata"}, m.content())
}

func TestRefusedFileRefusesThePatch(t *testing.T) {
	m := newMachine(t, t.TempDir())
	s := m.open()
	before := map[string]string{"a.env": "A=1"}
	apply(t, s, "one", before)
	bad := map[string]string{"a.env": "A=2", "b.json": "{", "../../etc/passwd": "root", ".env": "A=1", "c.conf": "x"}
	changed, err := s.Apply(patchOf(bad), "two")
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, 4, refused.Files)
	assert.True(t, changed)
	assert.Equal(t, before, m.content())
	assert.Equal(t, "one", m.hash())

	for range 2 { // also after a restart
		status, err := s.Status()
		require.NoError(t, err)
		assert.NotNil(t, status["a.env"].GetLastModified())
		for _, name := range []string{"b.json", "../../etc/passwd", ".env", "c.conf"} {
			assert.NotEmpty(t, status[name].GetError(), name)
		}
		assert.Len(t, status, 5)
		s = m.open()
	}
	reason, err := os.ReadFile(filepath.Join(m.received(), errorsFolder, "b.json"))
	require.NoError(t, err)
	assert.Equal(t, "it is not valid JSON\n", string(reason))
	_, err = os.Stat(filepath.Join(m.received(), errorsFolder, "..%2F..%2Fetc%2Fpasswd"))
	assert.Error(t, err, "the name of an error begins with a dot")

	// The same refusal again changes nothing that the server would have to receive.
	changed, err = s.Apply(patchOf(bad), "two")
	require.ErrorAs(t, err, &refused)
	assert.False(t, changed)
	changed, err = s.Apply(patchOf(map[string]string{"a.env": "A=2"}), "two")
	require.NoError(t, err)
	assert.True(t, changed)
	status, err := s.Status()
	require.NoError(t, err)
	assert.Len(t, status, 1, "errors end with the next patch")
	_, err = os.Stat(filepath.Join(m.received(), errorsFolder))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	changed, err = s.Apply(patchOf(map[string]string{"a.env": "A=2"}), "two")
	require.NoError(t, err)
	assert.False(t, changed)
}

func TestPatchThatCannotBeWrittenChangesNothing(t *testing.T) {
	m := newMachine(t, t.TempDir())
	s := m.open()
	before := map[string]string{"a.env": "A=1"}
	apply(t, s, "one", before)
	// A folder with files takes the place of the link of the new file.
	require.NoError(t, os.MkdirAll(filepath.Join(m.received(), "b.json", "x"), 0o755))
	_, err := s.Apply(patchOf(map[string]string{"a.env": "A=2", "b.json": "{}"}), "two")
	require.Error(t, err)
	assert.Equal(t, before, m.content())
	assert.Equal(t, "one", m.hash())
	assert.Equal(t, 1, m.versions())
	status, err := s.Status()
	require.NoError(t, err)
	assert.Contains(t, status["a.env"].GetError(), "could not be applied")
}

// A damaged file must not keep the agent from anything else.
func TestNextPatchReplacesWhatCannotBeRead(t *testing.T) {
	m := newMachine(t, t.TempDir())
	apply(t, m.open(), "one", map[string]string{"a.env": "A=1"})
	require.NoError(t, os.WriteFile(filepath.Join(m.received(), current, infoFile), []byte("x"), 0o640))
	s, err := Open(m.received(), 0o640, m.identity)
	require.NoError(t, err)
	require.Error(t, s.Recover())
	_, err = s.Status()
	require.NoError(t, err)
	apply(t, s, "two", map[string]string{"a.env": "A=2"})
	require.NoError(t, s.Recover())
	assert.Equal(t, map[string]string{"a.env": "A=2"}, m.content())
	assert.Equal(t, "two", m.hash())
}

// Names and reasons must not make a report larger than the server accepts.
func TestRefusalsAreShort(t *testing.T) {
	var patch Patch
	for i := range 2 * maxFiles {
		patch.Add(&nstancev1.FileTransfer{Filename: fmt.Sprint(i) + strings.Repeat("\u00e4", 1<<10)})
	}
	total := 0
	for name, reason := range patch.refused {
		total += len(name) + len(reason)
		assert.True(t, utf8.ValidString(name))
	}
	assert.Len(t, patch.refused, maxFiles)
	assert.Less(t, total, 200<<10)
}

func TestLimitsOfAPatch(t *testing.T) {
	var patch Patch
	content := []byte(`"` + strings.Repeat("x", maxFileBytes-2) + `"`)
	for i := range maxPatchBytes/maxFileBytes + 1 {
		patch.Add(&nstancev1.FileTransfer{Filename: fmt.Sprintf("%d.json", i), Content: content})
	}
	assert.Len(t, patch.refused, 1)
	assert.Contains(t, patch.refused["8.json"], "at most 33554432 are allowed")

	patch = Patch{}
	patch.Add(&nstancev1.FileTransfer{Filename: "a.json", Content: append(content, ' ')})
	assert.Contains(t, patch.refused["a.json"], "at most 4194304 are allowed")

	patch = Patch{}
	for i := range maxFiles + 1 {
		patch.Add(&nstancev1.FileTransfer{Filename: fmt.Sprintf("%d.env", i)})
	}
	assert.Contains(t, patch.refused[fmt.Sprintf("%d.env", maxFiles)], "more than 256 files")

	for name, transfer := range map[string]*nstancev1.FileTransfer{
		"the patch contains it twice":             {Filename: "0.env"},
		"the message with the file has a hash":    {Filename: "z.env", ConfigHash: "x"},
		"its time is invalid":                     {Filename: "y.env", LastModified: &timestamppb.Timestamp{Nanos: -1}},
		"must have one of the extensions":         {Filename: "x.sh"},
		"a name has 201 characters, at most 200":  {Filename: strings.Repeat("a", 197) + ".env"},
		"must consist of letters, digits, dots, ": {Filename: "a\x00.env"},
	} {
		patch = Patch{}
		patch.Add(&nstancev1.FileTransfer{Filename: "0.env"})
		patch.Add(transfer)
		assert.Contains(t, patch.refused[transfer.Filename], name)
	}
}
