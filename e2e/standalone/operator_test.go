// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// waitTimeout is much longer than anything takes on a busy machine.
const waitTimeout = 3 * time.Minute

// operator calls a server as the operator of the tenant.
type operator struct {
	nstancev1.OperatorServiceClient
	t      *testing.T
	server *server
	// size is the requested size of the group.
	size atomic.Int32
	// acceptsLosses is set if scale confirms that missing instances are lost, as an administrator
	// does.
	acceptsLosses bool
	// running returns the ids of the instances that run for the provider, which scale waits
	// for too; nil if the test does not look.
	running func() []string
}

func newOperator(s *server) *operator {
	s.t.Helper()
	certPEM, keyPEM, err := s.authority.IssueClient(pki.Client{ID: "e2e", Tenant: tenant, Role: pki.RoleOperator}, 24*time.Hour)
	require.NoError(s.t, err)
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(s.t, err)
	connection, err := grpc.NewClient(s.operatorAddr,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: pkitest.Roots(s.authority), Certificates: []tls.Certificate{certificate},
		})),
		// The backoff is short, because the server is started again at once.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: time.Second,
		}))
	require.NoError(s.t, err)
	o := &operator{OperatorServiceClient: nstancev1.NewOperatorServiceClient(connection), t: s.t, server: s}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { o.sendSize(ctx) })
	s.t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = connection.Close()
	})
	return o
}

// sendSize sends each size of the group until a server has accepted it.
func (o *operator) sendSize(ctx context.Context) {
	const unknown = -1
	accepted := int32(0)
	_ = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		size := o.size.Load()
		if size == accepted {
			return false, nil
		}
		request := &nstancev1.UpsertGroupRequest{Key: groupName, Config: &nstancev1.GroupConfig{Template: "worker", Size: size}}
		accepted = unknown // a server that was killed may have stored the size
		if _, err := o.UpsertGroup(ctx, request); err == nil {
			accepted = size
		}
		return false, nil
	})
}

// group returns the status of the group.
func (o *operator) group(ctx context.Context) (*nstancev1.GroupStatus, error) {
	list, err := o.ListGroups(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, err
	}
	for _, group := range list.Groups {
		if group.Key == groupName {
			return group, nil
		}
	}
	return nil, fmt.Errorf("group %s is not listed", groupName)
}

// scale sets the size of the group and waits until it has exactly so many instances, and all
// run: their agents have registered and report. It returns their ids.
func (o *operator) scale(size int) []string {
	o.t.Helper()
	o.size.Store(int32(size))
	var ids []string
	eventually(o.t, fmt.Sprintf("%d instances run", size), func(ctx context.Context) error {
		require.True(o.t, o.server.runs(), "the server has exited")
		group, err := o.group(ctx)
		if err != nil {
			return err
		}
		ids = nil
		for _, instance := range group.Instances.GetInstances() {
			ids = append(ids, instance.Id)
		}
		if o.acceptsLosses && int(group.ActualSize) < size {
			if err := instance.AcceptLosses(ctx, o.server.store, shardID, instance.GroupKey{Tenant: tenant, Group: groupName}); err != nil {
				return err
			}
		}
		if int(group.Size) != size || len(ids) != size || int(group.ActualSize) != size {
			return fmt.Errorf("the size is %d, there are %d instances, and %d run", group.Size, len(ids), group.ActualSize)
		}
		if o.running != nil {
			if running := o.running(); !sets.New(ids...).Equal(sets.New(running...)) {
				return fmt.Errorf("the instances are %q, and those that run %q", ids, running)
			}
		}
		return nil
	})
	return ids
}

// eventually repeats check until it succeeds.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	testcluster.Eventually(t, waitTimeout, what, check)
}
