// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/identifier"
)

// census knows of every Node that there ever was to which group it belongs. The
// audit log has names only.
type census struct {
	mu     sync.Mutex
	groups map[string]string
}

// takeCensus watches the Nodes until ctx ends.
func takeCensus(ctx context.Context, client kubernetes.Interface) (*census, error) {
	c := &census{groups: map[string]string{}}
	factory := informers.NewSharedInformerFactory(client, 0)
	handler, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*corev1.Node); ok {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.groups[node.Name] = node.Labels[v1beta1.LabelGroup]
			}
		},
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return nil, errors.New("the Nodes could not be listed")
	}
	return c, nil
}

// groupOf returns the group of a Node, which has been made, once it is known.
func (c *census) groupOf(t testing.TB, node string) (group string) {
	t.Helper()
	eventually(t, "it is known whose Node "+node+" is", func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		found, known := c.groups[node]
		if !known {
			return fmt.Errorf("%d Nodes are known", len(c.groups))
		}
		group = found
		return nil
	})
	return group
}

// isOf tells whether an object of this name is of a pool: is the pool, one of its
// shard groups, or stands for an instance that has been a Node.
func (c *census) isOf(name, pool string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return name == pool || strings.HasPrefix(name, pool+identifier.Separator) || c.groups[name] == pool
}
