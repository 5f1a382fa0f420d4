// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestTheSameFileAgain: neither another modification time nor another file of the
// same content changes anything.
func TestTheSameFileAgain(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operator := server.Operator("default")
	status := configStatus(t, operator)
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(server.ConfigPath(), later, later))
	server.ReadConfig()
	server.SetConfig(func(*servertest.Options) {})
	if now := configStatus(t, operator); !proto.Equal(now, status) {
		t.Errorf("the status is %v, was %v", now, status)
	}
	if _, err := os.Stat(server.GroupsPath()); !os.IsNotExist(err) {
		t.Errorf("groups were stored: %v", err)
	}
}

// TestAnEditorAtWork: a file that is incomplete or missing for a moment is not
// reported. How the next one replaces it does not matter.
func TestAnEditorAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Start(t, servertest.Options{InMemory: true, Groups: `{"default": {"main": {"template": "worker"}}}`})
		operator, path := s.Operator("default"), s.ConfigPath()
		events := make(chan *nstancev1.ErrorEvent, 10)
		watch := watchErrors(t, operator)
		go func() {
			for event, err := watch.Recv(); err == nil; event, err = watch.Recv() {
				events <- event
			}
		}()
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		sized := func(size int) []byte {
			return []byte(strings.Replace(string(content), `"main": {`, fmt.Sprintf(`"main": {"size": %d, `, size), 1))
		}
		do := func(err error) {
			t.Helper()
			require.NoError(t, err)
		}
		// tick makes the server read the configuration once.
		tick := func() {
			<-time.After(2 * time.Second)
			synctest.Wait()
		}
		expectSize := func(size int32) {
			t.Helper()
			tick()
			if group := find(t, list(t, operator), "main"); group.Size != size {
				t.Errorf("the size is %d, want %d", group.Size, size)
			}
		}

		do(os.WriteFile(path, sized(2)[:200], 0o600))
		tick()
		do(os.WriteFile(path, sized(2)[:300], 0o600))
		tick()
		do(os.WriteFile(path, sized(2), 0o600))
		expectSize(2)
		do(os.Rename(path, path+"~"))
		tick()
		do(os.WriteFile(path, sized(3), 0o600))
		expectSize(3)
		// As a volume of Kubernetes does: a link to a link to a folder.
		for size := range 3 {
			folder := fmt.Sprint(path, ".", size)
			do(os.Mkdir(folder, 0o700))
			do(os.WriteFile(filepath.Join(folder, "shard.jsonc"), sized(size), 0o600))
			do(os.Symlink(folder, path+".next"))
			do(os.Rename(path+".next", path+".data"))
			do(os.Symlink(filepath.Join(path+".data", "shard.jsonc"), path+".next"))
			do(os.Rename(path+".next", path))
			expectSize(int32(size))
		}
		if len(events) != 0 {
			t.Errorf("there were %d errors, the first is %v", len(events), <-events)
		}

		// A lasting problem is reported after two reads, and once.
		do(os.Remove(path))
		tick()
		if len(events) != 0 {
			t.Error("was reported at once")
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(events) != 1 {
			t.Errorf("was reported %d times", len(events))
		}
	})
}
