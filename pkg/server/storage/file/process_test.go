// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const (
	// roleVariable selects the role of the test binary as a child process, in the folder that
	// dirVariable names.
	roleVariable = "STORAGE_FILE_TEST_ROLE"
	dirVariable  = "STORAGE_FILE_TEST_DIR"
	// roleWriter writes until it is killed, at most maxLife after its start.
	roleWriter = "writer"
	maxLife    = 100 * time.Millisecond
	// roleCounter increments a counter and exits.
	roleCounter = "counter"
	counterKey  = "counted/object"
	increments  = 50
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	s, err := Open(os.Getenv(dirVariable))
	if err == nil {
		switch role {
		case roleWriter:
			err = writeUntilKilled(context.Background(), s)
		case roleCounter:
			err = count(context.Background(), s)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func count(ctx context.Context, s *Store) error {
	for range increments {
		if err := storagetest.Increment(ctx, s, counterKey); err != nil {
			return err
		}
	}
	return nil
}

// writerKeys are the objects of a writer.
var writerKeys = []string{"crash/a", "crash/b", "crash/below/c"}

// writeUntilKilled writes the objects in turn, and sometimes deletes one of them.
// After each write it prints the key and the version that is stored. It kills itself
// at a random time.
func writeUntilKilled(ctx context.Context, s *Store) error {
	time.AfterFunc(rand.N(maxLife), func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
	})
	for version := 1; ; version++ {
		for _, key := range writerKeys {
			if err := writeVersion(ctx, s, key, version); err != nil {
				return err
			}
			fmt.Println(key, version)
		}
	}
}

// writeVersion writes the next version of an object.
func writeVersion(ctx context.Context, s *Store, key string, version int) error {
	object, err := s.Get(ctx, key)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		_, err = s.Create(ctx, key, content(version))
		return err
	case err != nil:
		return err
	case version%5 == 0:
		if err := s.Delete(ctx, key); err != nil {
			return err
		}
		_, err = s.Create(ctx, key, content(version))
		return err
	default:
		_, err = s.Replace(ctx, key, content(version), object.ETag)
		return err
	}
}

// content has another length for each version, up to some pages of memory.
func content(version int) []byte {
	text := strconv.Itoa(version) + "\n"
	return []byte(strings.Repeat(text, 1+version*997%5000))
}

// child runs the test binary in a role.
func child(t testing.TB, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestKilledWriter kills 50 writing processes, one after the other.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for range 50 {
		acknowledged := runUntilKilled(t, child(t, roleWriter, dir))
		infos, err := s.List(t.Context(), "")
		require.NoError(t, err)
		for _, info := range infos {
			if !slices.Contains(writerKeys, info.Key) {
				t.Errorf("%q is listed, but was never written", info.Key)
			}
		}
		for _, key := range writerKeys {
			wantVersion(t, s, key, acknowledged[key])
			// The next writer starts with the first version again.
			require.NoError(t, s.Delete(t.Context(), key))
		}
	}
}

// runUntilKilled returns the last version that a writer printed for each object.
func runUntilKilled(t testing.TB, writer *exec.Cmd) map[string]int {
	t.Helper()
	output, err := writer.Output()
	if writer.ProcessState == nil || writer.ProcessState.Exited() {
		t.Fatalf("the writer was not killed: %v", err)
	}
	acknowledged := map[string]int{}
	for line := range strings.Lines(string(output)) {
		var key string
		var version int
		if _, err := fmt.Sscanln(line, &key, &version); err != nil {
			t.Fatalf("the writer printed %q: %v", line, err)
		}
		acknowledged[key] = version
	}
	return acknowledged
}

// wantVersion checks that an object is complete, and has the version that was acknowledged
// last or the version that was being written then.
func wantVersion(t testing.TB, s *Store, key string, acknowledged int) {
	t.Helper()
	object, err := s.Get(t.Context(), key)
	if errors.Is(err, storage.ErrNotFound) && (acknowledged == 0 || (acknowledged+1)%5 == 0) {
		return // not created yet, or deleted to be created again
	}
	if err != nil {
		t.Error(err)
		return
	}
	for _, version := range []int{acknowledged, acknowledged + 1} {
		if string(object.Data) == string(content(version)) {
			return
		}
	}
	t.Errorf("%s has %d bytes, %.20q…, that are neither version %d, which was acknowledged, nor the next", key, len(object.Data), object.Data, acknowledged)
}

// TestProcessesCount increments one counter in several processes.
func TestProcessesCount(t *testing.T) {
	const processes = 4
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, counterKey, "0")
	var group errgroup.Group
	for range processes {
		group.Go(child(t, roleCounter, dir).Run)
	}
	require.NoError(t, group.Wait())
	object, err := s.Get(t.Context(), counterKey)
	require.NoError(t, err)
	if got, want := string(object.Data), strconv.Itoa(processes*increments); got != want {
		t.Errorf("counted to %s, want %s", got, want)
	}
}
