// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qmp_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/qemu/qmp"
	"nstance.dev/operator/pkg/server/provider/qemu/testguest"
)

// startQEMU starts a QEMU without a machine and returns the path of its socket.
func startQEMU(t *testing.T) string {
	t.Helper()
	testguest.SkipUnlessEnabled(t)
	const binary = "qemu-system-x86_64"
	dir, err := os.MkdirTemp("", "qmp") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	path := filepath.Join(dir, "qmp")
	cmd := exec.Command(binary, "-machine", "none", "-S", "-display", "none", "-qmp", "unix:"+path+",server=on,wait=off")
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		require.NoError(t, os.RemoveAll(dir))
	})
	for {
		// The socket exists before QEMU listens.
		if conn, err := net.Dial("unix", path); err == nil {
			require.NoError(t, conn.Close())
			return path
		}
		select {
		case <-exited:
			t.Fatalf("QEMU has exited: %v", cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func dial(t *testing.T, path string) *qmp.Client {
	t.Helper()
	client, err := qmp.Dial(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func TestExecute(t *testing.T) {
	client := dial(t, startQEMU(t))
	var status struct {
		Status  string `json:"status"`
		Running bool   `json:"running"`
	}
	require.NoError(t, client.Execute(t.Context(), "query-status", nil, &status))
	assert.Equal(t, "prelaunch", status.Status)

	// Events arrive between the responses.
	for range 3 {
		require.NoError(t, client.Execute(t.Context(), "cont", nil, nil))
		require.NoError(t, client.Execute(t.Context(), "query-status", nil, &status))
		assert.Equal(t, "running", status.Status)
		require.NoError(t, client.Execute(t.Context(), "stop", nil, nil))
		require.NoError(t, client.Execute(t.Context(), "query-status", nil, &status))
		assert.Equal(t, "paused", status.Status)
	}

	var props []string
	err := client.Execute(t.Context(), "qom-list-properties", map[string]string{"typename": "no such type"}, &props)
	answered, ok := errors.AsType[*qmp.Error](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, "DeviceNotFound", answered.Class)
	// The connection can be used after an error of QEMU.
	require.NoError(t, client.Execute(t.Context(), "query-status", nil, nil))
}

func TestCommandOnABusyServerIsBounded(t *testing.T) {
	path := startQEMU(t)
	first := dial(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := qmp.Dial(ctx, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, first.Close())
	require.NoError(t, dial(t, path).Execute(t.Context(), "query-status", nil, nil))
}

func TestOtherPeers(t *testing.T) {
	for name, answer := range map[string]string{
		"another protocol":               "HTTP/1.1 400 Bad Request\r\n",
		"another JSON":                   `{"hello": "world"}` + "\n",
		"nothing":                        "",
		"part of the greeting":           `{"QMP": {`,
		"no answer to the first command": `{"QMP": {}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			listener, err := net.Listen("unix", path)
			require.NoError(t, err)
			defer listener.Close()
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(answer))
				conn.Close()
			}()
			_, err = qmp.Dial(t.Context(), path)
			require.Error(t, err)
		})
	}
	_, err := qmp.Dial(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
