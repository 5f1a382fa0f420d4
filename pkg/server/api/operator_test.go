// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api_test

import (
	"testing"

	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestUpsertGroupMakesInstances(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	operator := server.Operator("default")
	watch, err := operator.WatchGroups(t.Context(), &emptypb.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key:    "workers",
		Config: &nstancev1.GroupConfig{Template: "worker", Size: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(reply)
	for {
		event, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		t.Log(event)
		if event.Group.ActualSize == 3 {
			return
		}
	}
}
