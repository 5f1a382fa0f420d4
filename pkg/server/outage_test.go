// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

var errLost = errors.New("the connection was lost")

// startWithNodes starts a server, or another one with the state of s, whose instances are
// Nodes.
func startWithNodes(t *testing.T, s *servertest.Server, nodes kwok.NodeClient) *servertest.Server {
	t.Helper()
	o := servertest.Options{InMemory: true, Providers: provider.Registry{kwoktest.Name: func(o *jsonc.Object) provider.Options {
		options := kwok.ReadOptions(o)
		options.(*kwok.Options).Client = nodes
		return options
	}}}
	if s != nil {
		o.DataDir, o.Authority = s.DataDir, s.Authority
	}
	return servertest.Start(t, o)
}

// existingNodes returns the names of all Nodes, in order.
func existingNodes(t *testing.T, c *kwoktest.Cluster) []string {
	t.Helper()
	names, err := c.Existing(t.Context())
	require.NoError(t, err)
	return names
}

// outage is a simulated outage of the cloud of a server.
type outage struct {
	start      func() *servertest.Server
	begin, end func()
	// vanish deletes an instance like another client.
	vanish func(id string)
	// existing are the instances that exist, and made the instances that were ever created.
	existing, made func() []string
	// groups are the sizes of the groups.
	groups []int32
}

// test begins an outage of ten minutes: no instance is terminated or replaced. One instance
// vanishes in the last moment, and is replaced afterwards.
func (o outage) test(t *testing.T) {
	s := o.start()
	size := 0
	for n, count := range o.groups {
		upsert(t, s.Operator("default"), fmt.Sprint("group", n), &nstancev1.GroupConfig{Template: "worker", Size: count})
		size += int(count)
	}
	time.Sleep(2 * time.Minute)
	before := o.existing()
	require.Len(t, before, size)

	o.begin()
	time.Sleep(10 * time.Minute)
	assert.Equal(t, before, o.existing(), "instances during the outage")
	assert.Len(t, o.made(), size, "instances that were ever created")
	o.vanish(before[0])
	o.end()
	// If all instances were missing, they are left alone for a while.
	time.Sleep(16 * time.Minute)
	after := o.existing()
	require.Len(t, after, size)
	assert.Equal(t, before[1:], after[:size-1], "instances that were there all the time")
	assert.Len(t, o.made(), size+1, "instances that were ever created")
	var listed []string
	for _, group := range list(t, s.Operator("default")) {
		listed = append(listed, instanceIDs(group)...)
	}
	assert.ElementsMatch(t, after, listed)
	s.Stop()
}

// TestAnOutageOfTheCloud replaces only vanished instances, even if the cloud shows no
// instance at all, as with the credentials of another account.
func TestAnOutageOfTheCloud(t *testing.T) {
	for name, begin := range map[string]func(*cloudtest.Faults){
		"all calls fail": func(f *cloudtest.Faults) {
			for _, operation := range []cloudtest.Operation{cloudtest.List, cloudtest.Find, cloudtest.Launch, cloudtest.Terminate} {
				f.Fail(operation, 10_000)
			}
		},
		"all calls are throttled": func(f *cloudtest.Faults) { f.Throttle(10 * time.Minute) },
		"lists are empty":         func(f *cloudtest.Faults) { f.EmptyLists(10_000) },
		"nothing is found":        func(f *cloudtest.Faults) { f.DelayVisibility(24 * time.Hour) },
		"nothing is found, slowly": func(f *cloudtest.Faults) {
			f.DelayVisibility(24 * time.Hour)
			f.SlowFinds(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testOutageOfTheCloud(t, begin, 0, []int32{5}) })
		})
		if !strings.HasPrefix(name, "nothing") {
			continue
		}
		t.Run(name+", groups of one", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testOutageOfTheCloud(t, begin, 0, []int32{1, 1, 1, 1, 1}) })
		})
		// So few instances are given up, if the cloud shows empty lists without a delay.
		for _, groups := range [][]int32{{1}, {2}} {
			t.Run(fmt.Sprint(name, groups), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testOutageOfTheCloud(t, begin, 15*time.Minute, groups) })
			})
		}
	}
}

func testOutageOfTheCloud(t *testing.T, begin func(*cloudtest.Faults), emptyDelay time.Duration, groups []int32) {
	cloud, faults := cloudtest.NewCloud(), cloudtest.NewFaults()
	cloud.Limits.EmptyDelay = emptyDelay
	outage{
		start: func() *servertest.Server { return startInCloud(t, nil, cloud, faults) },
		begin: func() { begin(faults) },
		end: func() {
			for _, operation := range []cloudtest.Operation{cloudtest.List, cloudtest.Find, cloudtest.Launch, cloudtest.Terminate} {
				faults.Fail(operation, 0)
			}
			faults.EmptyLists(0)
			faults.DelayVisibility(0)
			faults.SlowFinds(0)
		},
		vanish:   func(id string) { cloud.Vanish(id) },
		existing: cloud.Existing,
		made:     cloud.Made,
		groups:   groups,
	}.test(t)
	assert.Empty(t, cloud.Terminated())
}

// TestAnOutageOfTheAPIServer is TestAnOutageOfTheCloud with Nodes.
func TestAnOutageOfTheAPIServer(t *testing.T) {
	notFound := apierrors.NewNotFound(corev1.Resource("nodes"), "")
	for name, f := range map[string]*kwoktest.Fault{
		"no response":      {Err: errLost, Hang: true},
		"lost connections": {Err: errLost},
		"HTTP 404":         {Err: notFound},
		"HTTP 500":         {Err: apierrors.NewInternalError(errLost)},
		"lists are empty":  {EmptyLists: true},
		"nothing is found": {EmptyLists: true, Err: notFound},
		// The cloud is slower than the workers of the provider query it.
		"nothing is found, slowly": {EmptyLists: true, Err: notFound, Slow: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testOutageOfTheAPIServer(t, f, []int32{5}) })
		})
		if f.EmptyLists {
			t.Run(name+", groups of one", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testOutageOfTheAPIServer(t, f, []int32{1, 1, 1, 1, 1}) })
			})
		}
	}
}

func testOutageOfTheAPIServer(t *testing.T, f *kwoktest.Fault, groups []int32) {
	c := kwoktest.NewCluster()
	outage{
		start:    func() *servertest.Server { return startWithNodes(t, nil, c) },
		begin:    func() { c.Begin(f) },
		end:      c.End,
		vanish:   func(id string) { require.NoError(t, c.Remove(t.Context(), id)) },
		existing: func() []string { return existingNodes(t, c) },
		made:     c.Made,
		groups:   groups,
	}.test(t)
}

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
// while some machines are terminated: exactly these machines are replaced, each once.
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
