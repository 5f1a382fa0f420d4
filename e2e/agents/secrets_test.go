// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// finder looks for secrets where they must not be.
type finder struct {
	secrets [][]byte
	found   []string
}

func (f *finder) check(where string, data []byte) {
	for n, secret := range f.secrets {
		if bytes.Contains(data, secret) {
			f.found = append(f.found, fmt.Sprintf("secret %d is in %s", n, where))
		}
	}
}

// files looks in all files below a folder, except if skip returns true.
func (f *finder) files(dir string, skip func(path string) bool) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // temporary files disappear
		}
		if err != nil || !entry.Type().IsRegular() || skip(path) {
			return err
		}
		data, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		f.check(path, data)
		return err
	})
}

// processes looks in the arguments of all processes.
func (f *finder) processes() (count int, err error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		data, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err != nil || len(data) == 0 {
			continue // it has exited, or is of the kernel
		}
		count++
		f.check(folder+"/cmdline", data)
	}
	return count, err
}

// token matches a nonce.
var token = regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`)

// checkSecrets checks that neither the secret in a file nor any nonce or private key is in
// logs, in the storage, in the caches, or in the arguments of a process. Agents and servers
// run.
func (s *shard) checkSecrets() {
	s.t.Helper()
	f := finder{secrets: [][]byte{[]byte(secretValue), []byte("PRIVATE KEY")}}
	// The nonces that userdata has written.
	machines, err := filepath.Glob(filepath.Join(s.dir, "machines", "*"))
	require.NoError(s.t, err)
	for _, machine := range machines {
		userdata, err := os.ReadFile(filepath.Join(machine, "userdata"))
		require.NoError(s.t, err)
		nonce := token.Find(userdata)
		require.NotEmpty(s.t, nonce, "the nonce of %s", machine)
		f.secrets = append(f.secrets, nonce)
	}
	require.Len(s.t, machines, len(s.cloud.Made()))
	// Only a machine has its userdata, its keys and the files that it has received.
	require.NoError(s.t, f.files(s.dir, func(path string) bool {
		if path == s.encryptionKeyFile() {
			return true
		}
		relative, err := filepath.Rel(filepath.Join(s.dir, "machines"), path)
		return err == nil && !strings.HasPrefix(relative, "..") && filepath.Base(path) != "log"
	}))
	count, err := f.processes()
	require.NoError(s.t, err)
	assert.Greater(s.t, count, len(s.cloud.Running()), "processes")
	assert.Empty(s.t, f.found)
}

// TestSecretsAreFound: the search finds what is in a log, in an object, and in an argument.
func TestSecretsAreFound(t *testing.T) {
	const secret = "planted-3f9a"
	dir := t.TempDir()
	planted := []string{filepath.Join(dir, "server.log"), filepath.Join(dir, "object.json")}
	for _, path := range planted {
		require.NoError(t, os.WriteFile(path, []byte("a line with "+secret+"\n"), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "other.log"), []byte("a line\n"), 0o600))
	// cat waits for its standard input.
	cmd := exec.Command("cat", "-", secret)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	f := finder{secrets: [][]byte{[]byte("absent-5d07"), []byte(secret)}}
	require.NoError(t, f.files(dir, func(string) bool { return false }))
	_, err = f.processes()
	require.NoError(t, err)
	want := "secret 1 is in /proc/" + strconv.Itoa(cmd.Process.Pid) + "/cmdline"
	assert.Contains(t, f.found, want)
	slices.Sort(planted)
	for _, path := range planted {
		assert.Contains(t, f.found, "secret 1 is in "+path)
	}
	assert.Len(t, f.found, 3)
}
