// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwoktest

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"nstance.dev/operator/pkg/server/provider/kwok"
)

// Fault makes all calls fail during an outage.
type Fault struct {
	// Err is the error of calls, unless it is nil.
	Err error
	// EmptyLists is true if lists are empty instead.
	EmptyLists bool
	// After is true if a call has its effect before.
	After bool
	// Slow is how long a call takes.
	Slow time.Duration
	// Hang is true if calls do not return before the outage ends or the caller gives up.
	Hang bool
}

// Cluster has the calls for the Nodes of a cluster in memory whose API server has outages.
type Cluster struct {
	kwok.NodeClient
	// mu guards the fields below.
	mu sync.Mutex
	// fault is nil unless there is an outage, which ends when ended is closed.
	fault *Fault
	ended chan struct{}
	// listed is false until the first list after an outage: watches know no older versions.
	listed  bool
	watches []watch.Interface
	calls   map[string]int
	// made has the name of each Node that was ever created.
	made []string
}

// NewCluster returns a cluster without Nodes.
func NewCluster() *Cluster {
	return &Cluster{NodeClient: Nodes(NewClientset()), calls: map[string]int{}}
}

// Begin begins an outage, which ends all watches.
func (c *Cluster) Begin(f *Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault, c.ended, c.listed = f, make(chan struct{}), false
	for _, watch := range c.watches {
		watch.Stop()
	}
	c.watches = nil
}

// End ends the outage. The API server has forgotten all earlier resource versions.
func (c *Cluster) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = nil
	close(c.ended)
}

// TakeCalls returns how many calls of each verb there were since the last time.
func (c *Cluster) TakeCalls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = map[string]int{}
	return calls
}

// Made returns the names of all Nodes that were ever created.
func (c *Cluster) Made() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.made)
}

// Existing returns the names of all Nodes, in order.
func (c *Cluster) Existing(ctx context.Context) ([]string, error) {
	list, err := c.NodeClient.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return names, nil
}

// Remove deletes a Node, like another client, also during an outage.
func (c *Cluster) Remove(ctx context.Context, name string) error {
	return c.NodeClient.Delete(ctx, name, metav1.DeleteOptions{})
}

// call makes a call, with the fault of an outage.
func (c *Cluster) call(ctx context.Context, verb string, do func() error) error {
	c.mu.Lock()
	c.calls[verb]++
	f, ended := c.fault, c.ended
	c.mu.Unlock()
	if f == nil || f.Err == nil || f.EmptyLists && verb == "list" {
		return do()
	}
	time.Sleep(f.Slow)
	if f.After && (verb == "create" || verb == "delete") {
		_ = do() // its response is lost
	}
	if f.Hang {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
		}
	}
	return f.Err
}

// Create implements kwok.NodeClient.
func (c *Cluster) Create(ctx context.Context, node *corev1.Node, o metav1.CreateOptions) (created *corev1.Node, err error) {
	err = c.call(ctx, "create", func() (err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if created, err = c.NodeClient.Create(ctx, node, o); err == nil {
			c.made = append(c.made, node.Name)
		}
		return err
	})
	return created, err
}

// Delete implements kwok.NodeClient.
func (c *Cluster) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return c.call(ctx, "delete", func() error { return c.NodeClient.Delete(ctx, name, o) })
}

// Get implements kwok.NodeClient.
func (c *Cluster) Get(ctx context.Context, name string, o metav1.GetOptions) (node *corev1.Node, err error) {
	err = c.call(ctx, "get", func() (err error) {
		node, err = c.NodeClient.Get(ctx, name, o)
		return err
	})
	return node, err
}

// List implements kwok.NodeClient.
func (c *Cluster) List(ctx context.Context, o metav1.ListOptions) (list *corev1.NodeList, err error) {
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

// Watch implements kwok.NodeClient.
func (c *Cluster) Watch(ctx context.Context, o metav1.ListOptions) (begun watch.Interface, err error) {
	err = c.call(ctx, "watch", func() (err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.listed {
			return apierrors.NewResourceExpired("too old resource version")
		}
		if begun, err = c.NodeClient.Watch(ctx, o); err == nil {
			c.watches = append(c.watches, begun)
		}
		return err
	})
	return begun, err
}

// IsWatchListSemanticsUnSupported makes informers list.
func (*Cluster) IsWatchListSemanticsUnSupported() bool { return true }
