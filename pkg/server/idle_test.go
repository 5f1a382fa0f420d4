// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestIdle runs a shard with a hundred groups and an operator that watches them for
// an hour: nothing is stored, requested from Kubernetes or reported. Connections are
// in memory so that the server can run in a bubble.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubernetes := kwoktest.NewClientset()
		s := servertest.Start(t, servertest.Options{InMemory: true, Kubernetes: kubernetes, Groups: `{"default": {"main": {"template": "worker"}, "other": {"template": "worker"}}}`})
		operator := s.Operator("default")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := operator.WatchGroups(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		events := make(chan *nstancev1.GroupEvent, 10_000)
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			for event, err := watch.Recv(); err == nil; event, err = watch.Recv() {
				events <- event
			}
		}()
		for i := range 98 {
			upsert(t, operator, fmt.Sprintf("group-%d", i), &nstancev1.GroupConfig{Template: "worker", Size: 2})
		}
		// Retries, confirmations and waits for events finish.
		<-time.After(2 * time.Minute)
		synctest.Wait()
		for _, group := range list(t, operator) {
			if group.ActualSize != group.Size {
				t.Errorf("after a while %s has %d of %d instances", group.Key, group.ActualSize, group.Size)
			}
		}
		for len(events) > 0 {
			<-events
		}
		kubernetes.ClearActions()
		file := s.GroupsPath()
		before, err := os.Stat(file)
		require.NoError(t, err)

		<-time.After(time.Hour)
		// Repeated requests change nothing either.
		for i := range 98 {
			upsert(t, operator, fmt.Sprintf("group-%d", i), &nstancev1.GroupConfig{Template: "worker", Size: 2})
		}
		synctest.Wait()
		if len(events) != 0 {
			t.Errorf("there were %d events, the first is %v", len(events), <-events)
		}
		if actions := kubernetes.Actions(); len(actions) != 0 {
			t.Errorf("there were %d calls to Kubernetes, the first is %v", len(actions), actions[0])
		}
		if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Errorf("the groups file was written: %v", err)
		}

		s.Stop()
		<-watching
	})
}
