// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// daemonName is the name under which the program of this test is a daemon.
const daemonName = "dockerd"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == daemonName {
		if err := runDaemon(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runDaemon serves the calls of Docker's API that Connect makes, and appends a line to the file
// starts.
func runDaemon(args []string) error {
	flags := flag.NewFlagSet(daemonName, flag.ContinueOnError)
	host, pidFile := flags.String("host", "", ""), flags.String("pidfile", "", "")
	dataRoot := flags.String("data-root", "", "")
	flags.String("exec-root", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	starts, err := os.OpenFile(filepath.Join(filepath.Dir(*dataRoot), "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer starts.Close()
	fmt.Fprintln(starts, os.Getpid())
	if err := os.WriteFile(*pidFile, fmt.Append(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	defer os.Remove(*pidFile)
	listener, err := net.Listen("unix", strings.TrimPrefix(*host, "unix://"))
	if err != nil {
		return err
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			if strings.HasSuffix(r.URL.Path, "/networks/bridge") {
				fmt.Fprint(w, `{"Name":"bridge","Options":{"com.docker.network.bridge.name":"lo"}}`)
			}
		}))
	}()
	<-ctx.Done()
	return nil
}

// A private daemon is started once, and stopped by the last program that uses it.
func TestPrivateDaemonHasSeveralUsers(t *testing.T) {
	program, dir := newDaemon(t)
	first, err := openPrivate(t.Context(), program, dir)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", first.Bridge)
	second, err := openPrivate(t.Context(), program, dir)
	require.NoError(t, err)
	assert.Equal(t, 1, starts(t, dir))

	require.NoError(t, first.Close())
	_, err = Connect(t.Context(), second.Address)
	require.NoError(t, err)
	require.NoError(t, second.Close())
	_, err = Connect(t.Context(), second.Address)
	require.Error(t, err)
	assert.NoFileExists(t, filepath.Join(dir, "pid"))
}

// The next program uses, and stops, the daemon of a killed program.
func TestPrivateDaemonThatIsLeft(t *testing.T) {
	program, dir := newDaemon(t)
	killed, err := openPrivate(t.Context(), program, dir)
	require.NoError(t, err)
	require.NoError(t, killed.private.users.Close())

	next, err := openPrivate(t.Context(), program, dir)
	require.NoError(t, err)
	assert.Equal(t, 1, starts(t, dir))
	require.NoError(t, next.Close())
	_, err = Connect(t.Context(), next.Address)
	require.Error(t, err)
}

// A daemon that does not start is an error with the path of its log.
func TestPrivateDaemonThatExits(t *testing.T) {
	_, err := openPrivate(t.Context(), "/bin/false", t.TempDir())
	require.ErrorContains(t, err, "it has exited: exit status 1")
	require.ErrorContains(t, err, "/log")
}

// newDaemon returns a program that is a daemon, and its folder.
func newDaemon(t *testing.T) (program, dir string) {
	t.Helper()
	test, err := os.Executable()
	require.NoError(t, err)
	// The path of a socket has at most 107 bytes
	// (https://man7.org/linux/man-pages/man7/unix.7.html).
	dir, err = os.MkdirTemp("", "docker-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	program = filepath.Join(dir, daemonName)
	require.NoError(t, os.Symlink(test, program))
	return program, dir
}

// starts is how often a daemon was started in a folder.
func starts(t *testing.T, dir string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "starts"))
	require.NoError(t, err)
	return strings.Count(string(data), "\n")
}
