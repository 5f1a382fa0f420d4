// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// fleet has the agents of all instances of a server, each with a connection of its own.
type fleet struct {
	t *testing.T
	s *servertest.Server

	// cut has the instances without a network.
	cut map[string]bool
	// clients are registered, and stops end their streams.
	clients map[string]nstancev1.AgentServiceClient
	stops   map[string]context.CancelFunc
}

// follow registers the agents of new instances, and connects those that have a network.
func (f *fleet) follow() {
	f.t.Helper()
	for id := range f.s.Created() {
		if f.clients[id] == nil {
			f.clients[id] = f.s.RegisterAgent(id)
		}
		if f.stops[id] == nil && !f.cut[id] {
			f.connect(id)
		}
	}
	synctest.Wait()
}

func (f *fleet) connect(id string) {
	ctx, cancel := context.WithCancel(context.Background())
	f.stops[id] = cancel
	reports, err := f.clients[id].SubmitHealthReport(ctx)
	if err != nil {
		return // the instance was deleted
	}
	go func() {
		for ctx.Err() == nil && reports.Send(&nstancev1.HealthReportRequest{InstanceId: id}) == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
		}
	}()
}

// disconnect cuts agents off.
func (f *fleet) disconnect(ids ...string) {
	for _, id := range ids {
		f.cut[id] = true
		f.stops[id]()
		delete(f.stops, id)
	}
	synctest.Wait()
}

// pass lets time pass in steps of a second.
func (f *fleet) pass(d time.Duration) {
	for range d / time.Second {
		time.Sleep(time.Second)
		f.follow()
	}
}

// running returns the instances that run, the oldest first.
func (f *fleet) running() []string {
	f.t.Helper()
	response, err := f.s.Operator("default").ListGroups(f.t.Context(), &emptypb.Empty{})
	require.NoError(f.t, err)
	var ids []string
	for _, i := range response.GetGroups()[0].GetInstances().GetInstances() {
		if i.GetStatus() == "running" {
			ids = append(ids, i.GetId())
		}
	}
	slices.Sort(ids)
	return ids
}

// TestAPartitionReplacesNothingThatComesBack cuts off half of the agents for five minutes
// while some machines are terminated: exactly those are replaced, each once.
func TestAPartitionReplacesNothingThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, terminated = 200, 20
		o := withAgents(fmt.Sprint(size))
		o.InMemory = true
		s := servertest.Start(t, o)
		f := &fleet{t: t, s: s, cut: map[string]bool{}, clients: map[string]nstancev1.AgentServiceClient{}, stops: map[string]context.CancelFunc{}}
		t.Cleanup(func() {
			for _, stop := range f.stops {
				stop()
			}
		})
		f.pass(time.Minute)
		before := f.running()
		require.Len(t, before, size)

		f.disconnect(before[:size/2]...)
		f.pass(time.Minute)
		for _, id := range before[size-terminated:] {
			require.NoError(t, s.Kubernetes.CoreV1().Nodes().Delete(t.Context(), id, metav1.DeleteOptions{}))
		}
		f.pass(4 * time.Minute)
		assert.Len(t, s.Created(), size+terminated, "instances created")
		clear(f.cut)
		f.pass(10 * time.Minute)
		after := f.running()
		assert.Len(t, after, size)
		assert.Subset(t, after, before[:size-terminated], "instances that came back")
		assert.Len(t, s.Created(), size+terminated, "instances created")
	})
}
