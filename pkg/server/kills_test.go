// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// moment is when a server is killed.
type moment int

const (
	beforeCall moment = iota
	// beforeResponse is after the call had its effect, and before its response.
	beforeResponse
	// afterResponse is before the server can record the response.
	afterResponse
)

// nodesOfProcess has the calls of a process that is killed at the first call of a verb.
type nodesOfProcess struct {
	kwok.NodeClient
	verb string
	at   moment
	// reached gets a value at the moment, and killed is closed when the process is dead. From
	// then on its calls have no effect.
	reached chan struct{}
	killed  chan struct{}
}

func newNodesOfProcess(c *kwoktest.Cluster, verb string, at moment) *nodesOfProcess {
	return &nodesOfProcess{NodeClient: c, verb: verb, at: at, reached: make(chan struct{}, 1), killed: make(chan struct{})}
}

// die waits at a moment until the process is dead. Only the first caller reaches it.
func (n *nodesOfProcess) die(now moment, verb string) {
	if verb != n.verb || now != n.at {
		return
	}
	select {
	case n.reached <- struct{}{}:
	default:
	}
	if now != afterResponse {
		<-n.killed
	}
}

// call makes a call unless the process is to die.
func (n *nodesOfProcess) call(verb string, do func() error) error {
	n.die(beforeCall, verb)
	select {
	case <-n.killed:
		return errLost
	default:
	}
	err := do()
	n.die(beforeResponse, verb)
	n.die(afterResponse, verb)
	return err
}

func (n *nodesOfProcess) Create(ctx context.Context, node *corev1.Node, o metav1.CreateOptions) (created *corev1.Node, err error) {
	err = n.call("create", func() (err error) {
		created, err = n.NodeClient.Create(ctx, node, o)
		return err
	})
	return created, err
}

func (n *nodesOfProcess) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return n.call("delete", func() error { return n.NodeClient.Delete(ctx, name, o) })
}

// IsWatchListSemanticsUnSupported makes informers list.
func (*nodesOfProcess) IsWatchListSemanticsUnSupported() bool { return true }

// kill kills a server at its moment.
func (n *nodesOfProcess) kill(t *testing.T, s *servertest.Server) {
	t.Helper()
	select {
	case <-n.reached:
	case <-time.After(time.Hour):
		close(n.killed)
		t.Fatalf("there was no call to %s a Node", n.verb)
	}
	stopped := make(chan struct{})
	go func() {
		s.Kill()
		close(stopped)
	}()
	if n.at != afterResponse {
		synctest.Wait() // its context is done
	}
	close(n.killed)
	<-stopped
}

// TestServersThatAreKilledWhileTheyCreateNodes kills 51 servers around the creation of a
// Node, and then others around deletions: each instance has exactly one Node, and no Node is
// left.
func TestServersThatAreKilledWhileTheyCreateNodes(t *testing.T) {
	const kills = 51
	synctest.Test(t, func(t *testing.T) {
		c := kwoktest.NewCluster()
		var s *servertest.Server
		killAt := func(n int, verb string, size int32) {
			nodes := newNodesOfProcess(c, verb, moment(n%3))
			s = startWithNodes(t, s, nodes)
			upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: size})
			nodes.kill(t, s)
		}
		settled := func(size int32) []string {
			s = startWithNodes(t, s, c)
			time.Sleep(2 * time.Minute)
			existing := existingNodes(t, c)
			assert.Len(t, existing, int(size))
			assert.ElementsMatch(t, existing, instanceIDs(list(t, s.Operator("default"))[0]))
			s.Kill()
			return existing
		}
		for n := range kills {
			killAt(n, "create", int32(n+1))
		}
		existing := settled(kills)
		assert.ElementsMatch(t, existing, c.Made(), "Nodes that were ever created")
		const deletions = 9
		for n := range deletions {
			killAt(n, "delete", int32(kills-n-1))
		}
		left := settled(kills - deletions)
		assert.Len(t, c.Made(), kills, "Nodes that were ever created")
		assert.Subset(t, existing, left)
	})
}
