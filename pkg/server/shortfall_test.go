// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

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

// TestShortfall: the status of a group that lacks capacity has a shortfall until it has its
// instances, or needs no more.
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
	// A smaller size needs no more capacity, and a larger size does again.
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
	// Another instance type has capacity.
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

// TestShortfallIsSentOncePerChange: operators get one event for each change of a shortfall.
// Attempts that fail again, which they get as errors, and the same size sent again send no
// event. Other events concern instances that were not created, which are given up after the
// registration timeout.
func TestShortfallIsSentOncePerChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := servertest.Start(t, servertest.Options{InMemory: true, Quota: `{"m7i.large": 1}`})
		operator := server.Operator("default")
		ctx, cancel := context.WithCancel(t.Context())
		watch, err := operator.WatchGroups(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		failures, err := operator.WatchErrors(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		events, failed, watching := make(chan *nstancev1.GroupStatus, 1000), make(chan struct{}, 1000), make(chan struct{})
		go func() {
			defer close(watching)
			for event, err := watch.Recv(); err == nil; event, err = watch.Recv() {
				if event.Group.Key == "workers" {
					events <- event.Group
				}
			}
		}()
		go func() {
			for _, err := failures.Recv(); err == nil; _, err = failures.Recv() {
				failed <- struct{}{}
			}
		}()
		defer func() {
			cancel()
			<-watching
		}()
		// after returns the changes of the shortfall in some time, and fails the test for
		// events that change nothing.
		last := &nstancev1.GroupStatus{}
		after := func(d time.Duration) []string {
			<-time.After(d)
			synctest.Wait()
			var changes []string
			for len(events) > 0 {
				event := <-events
				if proto.Equal(event, last) {
					t.Errorf("the same was sent twice: %v", event)
				}
				if shortfall := shortfallOf(event); shortfall != shortfallOf(last) {
					changes = append(changes, shortfall)
				}
				last = event
			}
			return changes
		}
		current := int32(0)
		size := func(size int32) {
			current = size
			upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: size})
		}
		configuration, err := os.ReadFile(server.ConfigPath())
		require.NoError(t, err)
		quota := func(instances int) {
			changed := strings.Replace(string(configuration), `"m7i.large": 1`, fmt.Sprintf(`"m7i.large": %d`, instances), 1)
			require.NoError(t, os.WriteFile(server.ConfigPath(), []byte(changed), 0o600))
		}
		const (
			lacksTwo = "2: out of capacity: quota of 1 m7i.large instances is used up"
			lacksOne = "1: out of capacity: quota of 2 m7i.large instances is used up"
		)
		for _, step := range []struct {
			name string
			do   func()
			want string
			// changes is how often the shortfall changes: twice if an instance appears
			// before the next attempt fails, or after it.
			changes int
		}{
			{"the quota", func() { size(1) }, "none", 0},
			{"more than the quota", func() { size(3) }, lacksTwo, 1},
			{"a larger quota", func() { quota(2) }, lacksOne, 2},
			{"a smaller size", func() { size(2) }, "none", 1},
			{"a larger size", func() { size(3) }, lacksOne, 1},
			{"enough quota", func() { quota(3) }, "none", 1},
		} {
			step.do()
			changes := after(4 * time.Minute)
			assert.Equal(t, step.want, shortfallOf(last), "%s: the last shortfall", step.name)
			assert.LessOrEqual(t, len(changes), step.changes, "%s: changes of the shortfall: %q", step.name, changes)
			for len(failed) > 0 {
				<-failed
			}
			for range 10 {
				size(current)
			}
			assert.Empty(t, after(10*time.Minute), "%s: changes while nothing changes it", step.name)
			if last.Shortfall != nil && len(failed) < 10 {
				t.Errorf("%s: there were %d errors in ten minutes", step.name, len(failed))
			}
		}
	})
}
