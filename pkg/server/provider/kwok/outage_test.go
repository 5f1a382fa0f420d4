// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/machines/machinestest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var errLost = errors.New("the connection was lost")

// fault is what is wrong with all calls during an outage.
type fault struct {
	// err is what calls return, unless it is nil.
	err error
	// emptyLists is true if lists are empty instead.
	emptyLists bool
	// after is true if a call has its effect before.
	after bool
	// hang is true if calls do not return before the outage ends or the caller gives up.
	hang bool
}

// cluster is a cluster in memory whose API server has outages.
type cluster struct {
	kwok.NodeClient
	// mu guards the fields below.
	mu sync.Mutex
	// fault is nil unless there is an outage, which ends when ended is closed.
	fault *fault
	ended chan struct{}
	// listed is false until the first list after an outage: watches know no older versions.
	listed  bool
	watches []watch.Interface
	calls   map[string]int
	// made are the Nodes that were ever created.
	made map[string]bool
}

func newCluster() *cluster {
	return &cluster{NodeClient: kwoktest.Nodes(kwoktest.NewClientset()), calls: map[string]int{}, made: map[string]bool{}}
}

// begin begins an outage, in which no watch survives.
func (c *cluster) begin(f *fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault, c.ended, c.listed = f, make(chan struct{}), false
	for _, one := range c.watches {
		one.Stop()
	}
	c.watches = nil
}

func (c *cluster) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = nil
	close(c.ended)
}

// takeCalls returns how many calls of each verb there were since the last time.
func (c *cluster) takeCalls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = map[string]int{}
	return calls
}

// call makes a call, with the fault of an outage.
func (c *cluster) call(ctx context.Context, verb string, do func() error) error {
	c.mu.Lock()
	c.calls[verb]++
	f, ended := c.fault, c.ended
	c.mu.Unlock()
	if f == nil || f.err == nil || f.emptyLists && verb == "list" {
		return do()
	}
	if f.after && (verb == "create" || verb == "delete") {
		_ = do() // its response is lost
	}
	if f.hang {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		}
	}
	return f.err
}

func (c *cluster) Create(ctx context.Context, node *corev1.Node, o metav1.CreateOptions) (created *corev1.Node, err error) {
	err = c.call(ctx, "create", func() (err error) {
		c.mu.Lock()
		c.made[node.Name] = true
		c.mu.Unlock()
		created, err = c.NodeClient.Create(ctx, node, o)
		return err
	})
	return created, err
}

func (c *cluster) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return c.call(ctx, "delete", func() error { return c.NodeClient.Delete(ctx, name, o) })
}

func (c *cluster) Get(ctx context.Context, name string, o metav1.GetOptions) (node *corev1.Node, err error) {
	err = c.call(ctx, "get", func() (err error) {
		node, err = c.NodeClient.Get(ctx, name, o)
		return err
	})
	return node, err
}

func (c *cluster) List(ctx context.Context, o metav1.ListOptions) (list *corev1.NodeList, err error) {
	err = c.call(ctx, "list", func() (err error) {
		c.mu.Lock()
		empty := c.fault != nil
		c.listed = !empty
		c.mu.Unlock()
		if empty {
			list = &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			return nil
		}
		list, err = c.NodeClient.List(ctx, o)
		return err
	})
	return list, err
}

func (c *cluster) Watch(ctx context.Context, o metav1.ListOptions) (one watch.Interface, err error) {
	err = c.call(ctx, "watch", func() (err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.listed {
			return apierrors.NewResourceExpired("too old resource version")
		}
		if one, err = c.NodeClient.Watch(ctx, o); err == nil {
			c.watches = append(c.watches, one)
		}
		return err
	})
	return one, err
}

// IsWatchListSemanticsUnSupported makes informers list.
func (*cluster) IsWatchListSemanticsUnSupported() bool { return true }

// names returns the names of all Nodes.
func (c *cluster) names(t *testing.T) []string {
	t.Helper()
	list, err := c.NodeClient.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	return names
}

// start runs the provider of a process.
func (c *cluster) start(t *testing.T) *providertest.Harness {
	t.Helper()
	return providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
		p, err := kwok.New(kwok.Config{
			Shard: provider.Shard{ClusterID: "test", ID: "a", Region: "us-west-2", Zone: "zone"}, Options: options(), Client: c, CallContext: callContext,
		})
		require.NoError(t, err)
		return p
	})
}

// TestAnOutage: for ten minutes the API server does not respond, or wrongly. No instance
// changes its state, no Node is deleted, and afterwards one that has really vanished is
// missing.
func TestAnOutage(t *testing.T) {
	nodes := corev1.Resource("nodes")
	for name, f := range map[string]*fault{
		"no response":      {err: errLost, hang: true},
		"lost connections": {err: errLost},
		"lost responses":   {err: errLost, after: true},
		"HTTP 401":         {err: apierrors.NewUnauthorized("the token has expired")},
		"HTTP 403":         {err: apierrors.NewForbidden(nodes, "", nil)},
		"HTTP 404":         {err: apierrors.NewNotFound(nodes, "")},
		"HTTP 410":         {err: apierrors.NewResourceExpired("too old resource version")},
		"HTTP 429":         {err: apierrors.NewTooManyRequestsError("try later")},
		"HTTP 500":         {err: apierrors.NewInternalError(errLost)},
		"HTTP 503":         {err: apierrors.NewServiceUnavailable("try later")},
		"empty lists":      {emptyLists: true},
		// A Node that the list has not is looked for by name.
		"empty lists and HTTP 503": {emptyLists: true, err: apierrors.NewServiceUnavailable("try later")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				machinestest.Outage{
					Start:  func() *providertest.Harness { return c.start(t) },
					Spec:   spec(),
					Begin:  func() { c.begin(f) },
					End:    c.end,
					Delete: func(id string) { require.NoError(t, c.NodeClient.Delete(t.Context(), id, metav1.DeleteOptions{})) },
					Calls:  c.takeCalls,
					IsRead: func(call string) bool { return slices.Contains([]string{"get", "list", "watch"}, call) },
					Made:   func() int { return len(c.made) },
				}.Test(t)
				assert.Len(t, c.names(t), 5, "Nodes")
			})
		})
	}
}

// TestAnOutageWhileInstancesAreCreatedAndDeleted delays them.
func TestAnOutageWhileInstancesAreCreatedAndDeleted(t *testing.T) {
	for name, f := range map[string]*fault{
		"lost responses":   {err: errLost, after: true},
		"late responses":   {err: errLost, after: true, hang: true},
		"lost connections": {err: errLost},
		"HTTP 404":         {err: apierrors.NewNotFound(corev1.Resource("nodes"), "")},
		"HTTP 503":         {err: apierrors.NewServiceUnavailable("try later")},
		"empty lists":      {emptyLists: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				h := c.start(t)
				deleted := h.MustRun(spec())
				c.begin(f)
				created := h.MustCreate(spec())
				h.MustDelete(deleted)
				time.Sleep(10 * time.Minute)
				c.end()
				h.Await(group, map[string]instance.State{created: instance.Running, deleted: providertest.Deleted})
				time.Sleep(10 * time.Minute)
				assert.Equal(t, []string{created}, c.names(t), "Nodes")
				assert.Equal(t, []string{created}, slices.Collect(maps.Keys(h.States(group))))
			})
		})
	}
}
