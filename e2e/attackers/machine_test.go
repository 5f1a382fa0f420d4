// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/pki"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Who is root on a machine has the files of its group and nothing else: no call of another role or
// for another instance, no name that the machine does not have, and no end of the error stream.
func TestMachine(t *testing.T) {
	t.Parallel()
	expectAlive(t, machines.component)
	id, folder := machineOf(t, intruders, "recv/own.env")
	victim, victimFolder := machineOf(t, victims, "recv/own.crt")
	require.Contains(t, readFile(t, folder, "recv", "own.json"), intruderSecret)
	require.Contains(t, readFile(t, victimFolder, "recv", "victim.json"), victimSecret)
	identity := clientConfig(t, []byte(readFile(t, folder, "identity", "identity.crt")), []byte(readFile(t, folder, "identity", "identity.key")))

	// The port for operators, and the calls of operators at the port for agents.
	operator := nstancev1.NewOperatorServiceClient(dial(t, at(machines.operator), identity))
	_, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
	expectRefused(t, err, codes.PermissionDenied, pki.RoleAgent, pki.RoleOperator)
	_, err = operator.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: victim})
	expectRefused(t, err, codes.PermissionDenied, pki.RoleAgent)
	connection := dial(t, at(machines.agent), identity)
	_, err = nstancev1.NewOperatorServiceClient(connection).ListGroups(t.Context(), &emptypb.Empty{})
	expectRefused(t, err, codes.Unimplemented)

	// Another instance. The agent itself would replace the attacker's streams.
	killAgent(t, folder)
	agent := nstancev1.NewAgentServiceClient(connection)
	_, err = agent.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: victim})
	expectRefused(t, err, codes.PermissionDenied, victim, id)
	expectRefused(t, report(t.Context(), agent, &nstancev1.HealthReportRequest{
		InstanceId: victim, TerminationNotice: &nstancev1.TerminationNotice{Action: "terminate"},
	}), codes.PermissionDenied, victim)
	received, err := filepath.Glob(filepath.Join(folder, "recv", "[a-z]*"))
	require.NoError(t, err)
	require.NotEmpty(t, received)
	for _, path := range received {
		assert.NotContains(t, readFile(t, path), victimSecret, path)
	}

	// A name that the machine does not have.
	liar, liarFolder := machineOf(t, liars, "agent.env")
	testcluster.Eventually(t, timeout, "the name is refused", func(context.Context) error {
		want := fmt.Sprintf("the agent reports the host name %q, must be the instance id %s", lie, liar)
		log := readFile(t, env.Component(machines.component).LogPath())
		if !strings.Contains(strings.ReplaceAll(log, `\"`, `"`), want) {
			return fmt.Errorf("the log has no %q", want)
		}
		return nil
	})
	_, err = os.Stat(filepath.Join(liarFolder, "recv", "names.crt"))
	assert.ErrorIs(t, err, os.ErrNotExist, "a certificate for %s", lie)

	// The cut of a long text is in the middle of a character. The stream of errors goes on. The
	// server ignores what an agent without a stream for files reports about them.
	errorsOfTenant := watchErrors(t)
	_, err = agent.ReceiveFiles(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	for _, text := range []string{strings.Repeat("x", 199) + "é", "marker-after-the-cut"} {
		broken := &nstancev1.FileStatus{Status: &nstancev1.FileStatus_Error{Error: text}}
		testcluster.Eventually(t, timeout, "the stream has the error", func(ctx context.Context) error {
			err := report(ctx, agent, &nstancev1.HealthReportRequest{
				InstanceId: id, Timestamp: timestamppb.Now(), Files: map[string]*nstancev1.FileStatus{"own.env": broken},
			})
			if err != nil {
				return err
			}
			return errorsOfTenant.contain(text[:20])
		})
	}
}

// receivedErrors are the errors of a stream, and the error with which it has ended.
type receivedErrors struct {
	mu    sync.Mutex
	texts []string
	err   error
}

// watchErrors receives the errors of the tenant of the machine shard until the end of the test.
func watchErrors(t *testing.T) *receivedErrors {
	t.Helper()
	operator := nstancev1.NewOperatorServiceClient(dial(t, at(machines.operator), issue(t, installation.Tenant, time.Hour)))
	watch, err := operator.WatchErrors(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	_, err = watch.Header()
	require.NoError(t, err)
	r := &receivedErrors{}
	go func() {
		for {
			event, err := watch.Recv()
			r.mu.Lock()
			r.texts, r.err = append(r.texts, event.GetError()), err
			r.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return r
}

func (r *receivedErrors) contain(part string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return fmt.Errorf("the stream has ended: %w", r.err)
	}
	if !slices.ContainsFunc(r.texts, func(text string) bool { return strings.Contains(text, part) }) {
		return fmt.Errorf("the errors are %q, none has %q", r.texts, part)
	}
	return nil
}

// killAgent kills the agent of a machine: who is root on it speaks in its place.
func killAgent(t *testing.T, folder string) {
	t.Helper()
	killed := 0
	for _, pid := range machines.cloud.Running() {
		if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && dir == folder {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			killed++
		}
	}
	require.Equal(t, 1, killed, "agents of the machine in %s", folder)
}

// report sends a report and returns the error with which the server ends the stream, nil if the
// server accepts the report.
func report(ctx context.Context, agent nstancev1.AgentServiceClient, request *nstancev1.HealthReportRequest) error {
	stream, err := agent.SubmitHealthReport(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.CloseAndRecv()
	return err
}
