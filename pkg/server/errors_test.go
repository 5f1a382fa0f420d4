// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// errorStream is a WatchErrors call.
type errorStream struct {
	t *testing.T
	grpc.ServerStreamingClient[nstancev1.ErrorEvent]
}

// watchErrors opens a stream that is closed with the test and returns when the
// server has registered it.
func watchErrors(t *testing.T, operator nstancev1.OperatorServiceClient) errorStream {
	t.Helper()
	s, err := operator.WatchErrors(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	_, err = s.Header()
	require.NoError(t, err)
	return errorStream{t, s}
}

func (s errorStream) next() *nstancev1.ErrorEvent {
	s.t.Helper()
	var event *nstancev1.ErrorEvent
	within(s.t, eventTimeout, "an error event", func() {
		var err error
		if event, err = s.Recv(); err != nil {
			s.t.Errorf("waiting for an error event: %v", err)
		}
	})
	return event
}

// TestQuota: a group gets what the quota allows, and the shortage is reported. It
// gets the rest when the quota is raised, and when instances of others are deleted.
func TestQuota(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Quota: `{"m7i.large": 3}`, Groups: `{"other": {"main": {"template": "worker", "size": 1, "limits": {"min_size": 0}}}}`})
	operator, other := server.Operator("default"), server.Operator("other")
	watchGroups(t, other).untilSize("main", 1)
	watch, otherWatch := watchErrors(t, operator), watchErrors(t, other)
	groups := watchGroups(t, operator)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 4})
	event := watch.next()
	if event.Group != "workers" || !strings.HasPrefix(event.InstanceId, "knd") || event.Error != "create an instance: out of capacity: quota of 3 m7i.large instances is used up" {
		t.Errorf("the event is %v", event)
	}
	untilActual := func(size int32) {
		t.Helper()
		groups.until(func(e *nstancev1.GroupEvent) bool { return e.Group.Key == "workers" && e.Group.ActualSize == size })
	}
	untilActual(2)
	// Another instance type has its own quota.
	upsert(t, operator, "big", &nstancev1.GroupConfig{Template: "worker", Size: 1, InstanceType: "m7i.xlarge"})
	groups.untilSize("big", 1)

	server.SetConfig(func(o *servertest.Options) { o.Quota = `{"m7i.large": 4}` })
	untilActual(3)
	// The reason has changed.
	if event := watch.next(); event.Group != "workers" || !strings.Contains(event.Error, "quota of 4 ") {
		t.Errorf("the event is %v", event)
	}
	upsert(t, other, "main", &nstancev1.GroupConfig{Size: 0})
	untilActual(4)

	// The other tenant got none of these errors.
	upsert(t, other, "main", &nstancev1.GroupConfig{Size: 1})
	if event := otherWatch.next(); event.Group != "main" || !strings.Contains(event.Error, "quota of 4 ") {
		t.Errorf("the other tenant's first event is %v", event)
	}
}

// TestFailuresOfTheProvider are reported with the id of the instance, which is not
// in the text.
func TestFailuresOfTheProvider(t *testing.T) {
	kubernetes := kwoktest.NewClientset()
	verbs := make(chan string, 1)
	verbs <- "create"
	for _, verb := range []string{"create", "delete"} {
		kubernetes.PrependReactor(verb, "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			failing := <-verbs
			verbs <- failing
			if failing != verb {
				return false, nil, nil
			}
			name := ""
			switch action := action.(type) {
			case clienttesting.CreateAction:
				name = action.GetObject().(interface{ GetName() string }).GetName()
			case clienttesting.DeleteAction:
				name = action.GetName()
			}
			return true, nil, apierrors.NewServiceUnavailable("node " + name + " has to wait")
		})
	}
	server := servertest.Start(t, servertest.Options{Kubernetes: kubernetes})
	operator := server.Operator("default")
	watch, groups := watchErrors(t, operator), watchGroups(t, operator)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
	event := watch.next()
	if want := `create Node <instance>: node <instance> has to wait`; event.Group != "workers" || event.Error != want {
		t.Errorf("the event is %v, want %s", event, want)
	}
	if !strings.HasPrefix(event.InstanceId, "knd") {
		t.Errorf("the event is of instance %q", event.InstanceId)
	}

	// Three instances fail in the same way: the next error differs.
	<-verbs
	verbs <- "delete"
	ids := groups.untilSize("workers", 3).ProviderIds
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Size: 2})
	event = watch.next()
	if want := `delete Node <instance>: node <instance> has to wait`; event.Error != want || !slices.Contains(ids, "kwok:///us-west-2a/"+event.InstanceId) {
		t.Errorf("the event is %v, want %s of one of %q", event, want, ids)
	}
	<-verbs
	verbs <- "none"
	groups.untilSize("workers", 2)
}

func TestWatchErrorsIsClosed(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	watch := watchErrors(t, server.Operator("default"))
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := server.Operator("default").WatchErrors(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	cancel()
	_, err = cancelled.Recv()
	wantCode(t, "a watch that was cancelled", err, codes.Canceled)
	within(t, eventTimeout, "stopping", server.Stop)
	_, err = watch.Recv()
	wantCode(t, "a watch of a server that stops", err, codes.Unavailable)
	if err != nil && !strings.Contains(err.Error(), "the server stops serving this shard") {
		t.Errorf("the watch was cut off: %v", err)
	}
}
