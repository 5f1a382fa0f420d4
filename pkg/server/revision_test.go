// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func upsertRequest(uid string, generation int64, size int32) *nstancev1.UpsertGroupRequest {
	return &nstancev1.UpsertGroupRequest{
		Key: "workers", Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
		Revision: &nstancev1.Revision{Uid: uid, Generation: generation},
	}
}

func deleteRequest(uid string, generation int64) *nstancev1.DeleteGroupRequest {
	return &nstancev1.DeleteGroupRequest{Key: "workers", Revision: &nstancev1.Revision{Uid: uid, Generation: generation}}
}

// wantStale checks the code and the detail of a refused request.
func wantStale(t *testing.T, err error, metadata map[string]string) {
	t.Helper()
	wantCode(t, "a stale request", err, codes.FailedPrecondition)
	details := status.Convert(err).Details()
	require.Len(t, details, 1)
	want := &errdetails.ErrorInfo{Domain: "nstance.dev", Reason: "STALE_REVISION", Metadata: metadata}
	if got, _ := details[0].(*errdetails.ErrorInfo); !proto.Equal(got, want) {
		t.Errorf("the detail is %v, want %v", got, want)
	}
}

// A revision is reported in replies, lists and watches, also if nothing else changes,
// and counts in the next term.
func TestRevisionsSurviveARestart(t *testing.T) {
	first := servertest.Start(t, servertest.Options{})
	operator := first.Operator("default")
	watch := watchGroups(t, operator)
	reply := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	assert.True(t, proto.Equal(&nstancev1.Revision{}, reply.Revision), "without a revision %v is reported", reply.Revision)
	for _, generation := range []int64{5, 6} {
		request := upsertRequest("u", generation, 1)
		reply, err := operator.UpsertGroup(t.Context(), request)
		require.NoError(t, err)
		assert.True(t, proto.Equal(request.Revision, reply.Revision), "the reply has %v", reply.Revision)
		assert.True(t, proto.Equal(request.Revision, list(t, operator)[0].Revision), "the list has %v", list(t, operator)[0].Revision)
		watch.until(func(e *nstancev1.GroupEvent) bool { return proto.Equal(e.Group.Revision, request.Revision) })
	}
	watchGroups(t, operator).untilSize("workers", 1)
	first.Stop()

	second := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr})
	operator = second.Operator("default")
	assert.True(t, proto.Equal(upsertRequest("u", 6, 1).Revision, list(t, operator)[0].Revision), "after a restart the list is %v", list(t, operator))
	_, err := operator.UpsertGroup(t.Context(), upsertRequest("u", 5, 0))
	wantStale(t, err, map[string]string{"revision": "u/5", "stored-revision": "u/6"})
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("u", 5))
	wantStale(t, err, map[string]string{"revision": "u/5", "stored-revision": "u/6"})
	if got := list(t, operator); len(got) != 1 || got[0].Size != 1 || len(got[0].ProviderIds) != 1 {
		t.Errorf("after refused requests there are groups %v", got)
	}
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("u", 6))
	require.NoError(t, err)
	untilListed(t, operator)
	second.Stop()

	third := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr})
	operator = third.Operator("default")
	require.Empty(t, list(t, operator))
	_, err = operator.UpsertGroup(t.Context(), upsertRequest("u", 6, 1))
	wantStale(t, err, map[string]string{"revision": "u/6"})
	require.Empty(t, list(t, operator))
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("u", 6))
	require.NoError(t, err, "a repeated deletion")
}

func TestMalformedRevisionsAreInvalid(t *testing.T) {
	operator := servertest.Start(t, servertest.Options{}).Operator("default")
	_, err := operator.UpsertGroup(t.Context(), upsertRequest("", 1, 0))
	wantCode(t, "an upsert without a uid", err, codes.InvalidArgument)
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("", 1))
	wantCode(t, "a deletion without a uid", err, codes.InvalidArgument)
	request := upsertRequest("u", 1, 0)
	request.Replaces = &nstancev1.Revision{}
	_, err = operator.UpsertGroup(t.Context(), request)
	wantCode(t, "an upsert that replaces nothing", err, codes.InvalidArgument)
}
