// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/metricstest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestShutGateRejectsAllCalls calls every method.
func TestShutGateRejectsAllCalls(t *testing.T) {
	registry := prometheus.NewRegistry()
	unary, stream := Count(registry)
	operator := dial(t, NewGate(func() bool { return true }, func() string { return "another server leads" }), grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream))
	const want = "this server does not lead: another server leads"
	methods := reflect.TypeFor[nstancev1.OperatorServiceClient]()
	for n := range methods.NumMethod() {
		method := methods.Method(n)
		if method.Name == "RenewCertificate" {
			continue // It works without a term.
		}
		request := reflect.New(method.Type.In(1).Elem())
		results := reflect.ValueOf(operator).MethodByName(method.Name).Call([]reflect.Value{reflect.ValueOf(t.Context()), request})
		err, _ := results[1].Interface().(error)
		if watch, ok := results[0].Interface().(grpc.ClientStream); ok && err == nil {
			err = watch.RecvMsg(&emptypb.Empty{})
		}
		expectStatus(t, method.Name, err, codes.Unavailable, want)
	}
	counts := map[string]int{}
	for _, series := range metricstest.Series(t, registry) {
		name, _, _ := strings.Cut(series, "{")
		counts[name]++
		if name == "nstance_server_streams" && !strings.HasSuffix(series, " 0") {
			t.Errorf("a stream is open: %s", series)
		}
	}
	const watches = 3
	assert.Equal(t, map[string]int{
		"nstance_server_rpc_total":            methods.NumMethod() - 1,
		"nstance_server_rpc_duration_seconds": methods.NumMethod() - 1 - watches,
		"nstance_server_streams":              watches,
	}, counts, "series")
}

func TestGateOpensAndShuts(t *testing.T) {
	first, second := newService(t), newService(t)
	gate := NewGate(func() bool { return true }, func() string { return "there is no leader" })
	operator := dial(t, gate)
	expectRejected := func() {
		t.Helper()
		_, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
		expectStatus(t, "without a term", err, codes.Unavailable, "there is no leader")
	}
	expectRejected()
	for n, s := range []*service{first, second} {
		shut := gate.Open(s.OperatorService)
		record := s.add()
		_, err := operator.GetInstanceStatus(t.Context(), &nstancev1.GetInstanceStatusRequest{InstanceId: record.ID})
		expectStatus(t, fmt.Sprint("in term ", n), err, codes.OK, "")

		instances := watchInstances(t, operator)
		s.InstanceEvents.Deleted(instance.Instance{Record: record})
		if event := receive(t, instances); event.InstanceId != record.ID {
			t.Errorf("got %v", event)
		}
		failures, err := operator.WatchErrors(t.Context(), &emptypb.Empty{})
		require.NoError(s.t, err)
		groups, err := operator.WatchGroups(t.Context(), &emptypb.Empty{})
		require.NoError(s.t, err)
		s.Statuses.Refresh(record.Key())
		_, err = groups.Recv()
		require.NoError(s.t, err)
		shut()
		for name, recv := range map[string]func() error{
			"WatchInstances": func() error { _, err := instances.Recv(); return err },
			"WatchErrors":    func() error { _, err := failures.Recv(); return err },
			"WatchGroups":    func() error { _, err := groups.Recv(); return err },
		} {
			expectStatus(t, name, recv(), codes.Unavailable, "")
		}
		expectRejected()
	}
}

// TestShuttingWaitsForCalls and cancels them, so that nothing of a term is used
// after it.
func TestShuttingWaitsForCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := NewGate(func() bool { return true }, func() string { return "" })
		service := &OperatorService{Statuses: NewStatusCache(StatusOptions{}), Errors: NewErrors(), InstanceEvents: NewInstanceEvents()}
		shut := gate.Open(service)
		release, answered := make(chan struct{}), make(chan error, 1)
		var cancelled, isShut atomic.Bool
		go func() {
			_, err := forward(t.Context(), &gate.termGate, &emptypb.Empty{}, func(got *OperatorService, ctx context.Context, _ *emptypb.Empty) (*emptypb.Empty, error) {
				if got != service {
					t.Error("another service is called")
				}
				<-ctx.Done()
				cancelled.Store(true)
				<-release
				return nil, status.Error(codes.Unavailable, "too late")
			})
			answered <- err
		}()
		synctest.Wait()
		go func() {
			shut()
			isShut.Store(true)
		}()
		synctest.Wait()
		if !cancelled.Load() || isShut.Load() {
			t.Errorf("the call was cancelled: %t; the gate was shut before the call returned: %t", cancelled.Load(), isShut.Load())
		}
		close(release)
		synctest.Wait()
		expectStatus(t, "the call", <-answered, codes.Unavailable, "too late")
		if !isShut.Load() {
			t.Error("the gate is not shut")
		}
	})
}

// TestStreamAfterShutIsClosed with a stream that entered before the gate was shut.
func TestStreamAfterShutIsClosed(t *testing.T) {
	s := newService(t)
	NewGate(func() bool { return true }, func() string { return "" }).Open(s.OperatorService)()
	operator := dial(t, s)
	w, err := operator.WatchInstances(t.Context(), &emptypb.Empty{})
	if err == nil {
		_, err = w.Recv()
	}
	expectStatus(t, "WatchInstances", err, codes.Unavailable, "stops serving")
}
