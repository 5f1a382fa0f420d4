// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/kubectl/pkg/drain"

	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/operator/shard"
)

// The reads in this file bypass the caches. Each precedes a step that cannot be
// reverted: an acknowledgement, after which the shard deletes the instance, or an
// uncordon, after which Pods may start on the Node.

// listEvictable lists the Pods that have to leave a Node before its machine is
// deleted. The package comment describes which Pods these are. unreadable is the error of
// reading their DaemonSets: the Pods of these are not listed.
func (c *Controller) listEvictable(ctx context.Context, s *state, node *corev1.Node) (pods []corev1.Pod, unreadable, err error) {
	helper := drain.Helper{
		Ctx:                 ctx,
		Client:              c.client,
		Force:               true,
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  true,
		AdditionalFilters: []drain.PodFilter{func(pod corev1.Pod) drain.PodDeleteStatus {
			if !s.blocksDrain(&pod, node, c.clock.Now()) {
				return drain.MakePodDeleteStatusSkip()
			}
			return drain.MakePodDeleteStatusOkay()
		}},
	}
	list, errs := helper.GetPodsForDeletion(node.Name)
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		err = fmt.Errorf("list the Pods to evict from Node %s: %w", node.Name, utilerrors.NewAggregate(errs))
	}
	if list == nil {
		return nil, nil, err
	}
	return list.Pods(), err, nil
}

// listProviderIDs lists the provider ids of all Nodes, by their keys. An instance
// whose Node is not in the cache is acknowledged only if it is not in this list
// either.
func listProviderIDs(ctx context.Context, client kubernetes.Interface) (map[string][]string, error) {
	ids := map[string][]string{}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Nodes().List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			key := providerid.Key(node.Spec.ProviderID)
			ids[key] = append(ids[key], node.Spec.ProviderID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return ids, nil
}

// getPersistentVolume returns a PersistentVolume, or nil if there is none.
func (c *Controller) getPersistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	volume, err := c.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get PersistentVolume %s: %w", name, err)
	}
	return volume, nil
}

// instanceStays queries the shard and reports whether the instance runs and is not
// going to be deleted. If the shard still intends to delete it, retry is the time
// after which to query again.
func (c *Controller) instanceStays(ctx context.Context, key Key) (stays bool, retry time.Duration, err error) {
	instance, err := c.shards.GetInstance(ctx, key.Shard, key.Instance)
	switch {
	case errors.Is(err, shard.ErrUnknownShard):
		// No server can confirm anything about the Node, so it stays cordoned.
		return false, 0, nil
	case shard.IsNotFound(err), err == nil && instance.State.IsTerminating():
		// The machine is being deleted, so its Node must not get Pods again.
		return false, 0, nil
	case err != nil:
		return false, 0, err
	case instance.State != shard.InstanceRunning || !instance.DeleteAt.IsZero():
		return false, withdrawalPeriod, nil
	}
	return true, 0, nil
}
