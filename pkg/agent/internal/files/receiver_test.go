// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// sender is a server that sends messages on the first stream.
type sender struct {
	nstancev1.UnimplementedAgentServiceServer
	messages chan *nstancev1.FileTransfer
}

func (s sender) ReceiveFiles(_ *emptypb.Empty, stream grpc.ServerStreamingServer[nstancev1.FileTransfer]) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case message := <-s.messages:
			if err := stream.Send(message); err != nil {
				return err
			}
		}
	}
}

// A message holds a file of the maximum size. A larger file is refused with the reason, and
// the stream stays open: the server would retry the files of a stream that ends.
func TestOneMessageHasAFile(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := sender{messages: make(chan *nstancev1.FileTransfer)}
	server := grpc.NewServer()
	nstancev1.RegisterAgentServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := identity.NewConnection(listener.Addr().String(), insecure.NewCredentials)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })

	m := newMachine(t, t.TempDir())
	applied := make(chan error, 3)
	receiver := &Receiver{Connection: conn, Store: m.open(), Changed: func() {}, Applied: func(err error) { applied <- err }}
	runtest.Start(t, receiver.Run)
	send := func(hash string, size int) (err error) {
		content := `"` + strings.Repeat("x", size-2) + `"`
		s.messages <- &nstancev1.FileTransfer{Filename: "a.json", Content: []byte(content)}
		s.messages <- &nstancev1.FileTransfer{ConfigHash: hash}
		runtest.Eventually(t, "patch "+hash+" is complete", func() bool {
			select {
			case err = <-applied:
				return true
			default:
				return false
			}
		})
		return err
	}
	require.NoError(t, send("one", maxFileBytes))
	assert.Len(t, m.content()["a.json"], maxFileBytes)
	require.Error(t, send("two", maxFileBytes+1))
	reason, err := os.ReadFile(filepath.Join(m.received(), "errors", "a.json"))
	require.NoError(t, err)
	assert.Equal(t, "it has 4194305 bytes, at most 4194304 are allowed\n", string(reason))
	assert.Len(t, m.content()["a.json"], maxFileBytes)
	require.NoError(t, send("three", 2))
	assert.Equal(t, `""`, m.content()["a.json"])
}
