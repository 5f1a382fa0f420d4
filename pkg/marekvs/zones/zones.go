// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package zones counts Kubernetes Nodes by zone, and reads each of them rarely.
package zones

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Period is how long the zone of a Kubernetes Node is remembered. A Node rarely gets another one.
const Period = 10 * time.Minute

const (
	// maxRemembered bounds how many Kubernetes Nodes are remembered.
	maxRemembered = 10_000
	// maxReads is how many Kubernetes Nodes a call reads. The next call reads more.
	maxReads = 20
)

// Zones remembers the zones of Kubernetes Nodes, so that each is read once in Period for all
// clusters. The zero value is empty. It is safe for concurrent use.
type Zones struct {
	mu    sync.Mutex
	known map[string]remembered
}

type remembered struct {
	zone string
	at   time.Time
}

// Count returns how many of nodes, which are names of Kubernetes Nodes, are in each zone, nil if
// that is not known of every Node yet. Nodes without a zone, and Nodes that do not exist, are in the
// zone "".
func (z *Zones) Count(ctx context.Context, kube kubernetes.Interface, nodes []string, now time.Time) (map[string]int32, error) {
	count, reads := map[string]int32{}, 0
	for _, node := range nodes {
		zone, known := z.of(node, now)
		if !known {
			if reads++; reads > maxReads {
				return nil, nil
			}
			var err error
			if zone, err = z.read(ctx, kube, node, now); err != nil {
				return nil, err
			}
		}
		count[zone]++
	}
	return count, nil
}

// of returns the zone of a Kubernetes Node if it is remembered, empty if the Node has none.
func (z *Zones) of(node string, now time.Time) (zone string, known bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	last, known := z.known[node]
	return last.zone, known && now.Sub(last.at) < Period
}

// read reads the zone of a Kubernetes Node, empty if the Node has none or does not exist
// (https://kubernetes.io/docs/reference/labels-annotations-taints/#topologykubernetesiozone).
func (z *Zones) read(ctx context.Context, kube kubernetes.Interface, node string, now time.Time) (string, error) {
	object, err := kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read Node %s: %w", node, err)
	}
	zone := ""
	if err == nil {
		zone = object.Labels[corev1.LabelTopologyZone]
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.known == nil || len(z.known) >= maxRemembered {
		z.known = map[string]remembered{}
	}
	z.known[node] = remembered{zone, now}
	return zone, nil
}
