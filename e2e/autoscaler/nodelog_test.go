// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
)

// nodeLog records the group of every Node that ever existed. The audit log has only
// the names of Nodes.
type nodeLog struct {
	mu     sync.Mutex
	groups map[string]string
}

// watchNodes records Nodes until ctx is done.
func watchNodes(ctx context.Context, client kubernetes.Interface) (*nodeLog, error) {
	l := &nodeLog{groups: map[string]string{}}
	return l, testcluster.Follow(ctx, coreinformers.NewNodeInformer(client, 0, nil), cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*corev1.Node); ok {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.groups[node.Name] = node.Labels[v1beta1.LabelGroup]
			}
		},
	})
}

// groupOf waits until a Node that was created is recorded, and returns its group.
func (l *nodeLog) groupOf(t testing.TB, node string) (group string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "Node "+node+" is recorded", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		found, known := l.groups[node]
		if !known {
			return fmt.Errorf("%d others are", len(l.groups))
		}
		group = found
		return nil
	})
	return group
}

// isOf reports whether an object of this name is the pool, one of its shard groups, or
// belongs to an instance of the pool that was a Node.
func (l *nodeLog) isOf(name, pool string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return name == pool || strings.HasPrefix(name, pool+identifier.Separator) || l.groups[name] == pool
}
