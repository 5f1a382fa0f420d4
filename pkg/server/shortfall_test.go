// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shortfallOf describes the shortfall of a group.
func shortfallOf(group *nstancev1.GroupStatus) string {
	if group.Shortfall == nil {
		return "none"
	}
	return fmt.Sprintf("%d: %s", group.Shortfall.Missing, group.Shortfall.Message)
}

// TestShortfall: a group that lacks capacity says so until it has its instances, or needs
// no more.
func TestShortfall(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Quota: `{"m7i.large": 1}`})
	operator := server.Operator("default")
	groups := watchGroups(t, operator)
	until := func(want string) {
		t.Helper()
		groups.until(func(e *nstancev1.GroupEvent) bool { return e.Group.Key == "workers" && shortfallOf(e.Group) == want })
	}
	if group := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3}); group.Shortfall != nil {
		t.Errorf("the shortfall before an attempt is %v", group.Shortfall)
	}
	until("2: out of capacity: quota of 1 m7i.large instances is used up")
	server.SetConfig(func(o *servertest.Options) { o.Quota = `{"m7i.large": 2}` })
	until("1: out of capacity: quota of 2 m7i.large instances is used up")
	// A smaller size needs no more, and a larger one does again.
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
	until("none")
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
	until("1: out of capacity: quota of 2 m7i.large instances is used up")
	server.SetConfig(func(o *servertest.Options) { o.Quota = "" })
	until("none")
}

// TestCreateInstanceIsDeclinedWithoutCapacity before anything is stored. A request that was
// accepted before is accepted again.
func TestCreateInstanceIsDeclinedWithoutCapacity(t *testing.T) {
	server := servertest.Start(t, servertest.Options{
		Quota: `{"m7i.large": 1}`, Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`,
	})
	operator := server.Operator("default")
	create := func(key, instanceType string) (string, error) {
		reply, err := operator.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{
			IdempotencyKey: key, Config: &nstancev1.InstanceConfig{Group: "main", InstanceType: instanceType},
		})
		return reply.GetInstanceId(), err
	}
	first, err := create("first", "")
	require.NoError(t, err)
	untilRuns(t, operator, first)

	_, err = create("second", "")
	wantCode(t, "without capacity", err, codes.ResourceExhausted)
	if assert.Len(t, status.Convert(err).Details(), 1) {
		info, _ := status.Convert(err).Details()[0].(*errdetails.ErrorInfo)
		assert.Equal(t, nstancev1.ErrorDomain+" "+nstancev1.ReasonOutOfCapacity, info.GetDomain()+" "+info.GetReason())
	}
	again, err := create("first", "")
	require.NoError(t, err)
	assert.Equal(t, first, again)
	// Another type has capacity.
	_, err = create("third", "m7i.xlarge")
	require.NoError(t, err)
	server.SetConfig(func(o *servertest.Options) { o.Quota = "" })
	_, err = create("second", "")
	require.NoError(t, err)
}

// untilRuns waits for an on-demand instance.
func untilRuns(t *testing.T, operator nstancev1.OperatorServiceClient, id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		reply, err := operator.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: id})
		return err == nil && reply.Status == "running"
	}, eventTimeout, eventTimeout/1000, "instance %s runs", id)
}
