// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package workload reports whether the operator can read the Nodes of a workload cluster other
// than its own cluster. While it cannot, it still scales pools; drains and Pods that request
// machines wait (docs/install.md#management-cluster-and-workload-cluster).
package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

const (
	// period is the time between two requests.
	period = 15 * time.Second
	// timeout is the timeout of a request.
	timeout = 10 * time.Second
)

// Controller lists a Node periodically.
type Controller struct {
	server string
	nodes  corev1client.NodeInterface
	queue  *controller.Queue[string]
	metric *prometheus.GaugeVec

	mu       sync.Mutex
	state    metav1.Condition
	handlers []func()
}

// New returns a controller. server is the URL of the API server, for messages.
func New(d controllers.Dependencies, server string) *Controller {
	c := &Controller{
		server: server,
		nodes:  d.Workload.Kube.CoreV1().Nodes(),
		// A standby exports no series, because it makes no requests.
		metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nstance_operator_workload_cluster_reachable",
			Help: "1 while the leader can list the Nodes of the workload cluster, otherwise 0; missing if the operator runs in that cluster.",
		}, []string{"server"}),
	}
	d.Metrics.MustRegister(c.metric)
	c.queue = controller.NewQueue("workload", c.sync)
	c.queue.Add(server)
	return c
}

// Run sends requests until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, 1) }

// HasSynced returns nil: the controller has no caches.
func (c *Controller) HasSynced() []cache.DoneChecker { return nil }

// State returns status, reason and message of the condition WorkloadClusterReachable after the
// last request. The status is empty before the first request.
func (c *Controller) State() metav1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// AddHandler registers handler, which is called when status or reason has changed.
func (c *Controller) AddHandler(handler func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = append(c.handlers, handler)
}

func (c *Controller) sync(ctx context.Context, _ string) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := c.nodes.List(limited, metav1.ListOptions{Limit: 1})
	if ctx.Err() == nil {
		c.set(ctx, conditionOf(c.server, err))
	}
	return period, nil
}

// set stores the state if status or reason has changed. The message is not compared, because
// the texts of network errors differ each time.
func (c *Controller) set(ctx context.Context, state metav1.Condition) {
	reachable, value := state.Status == metav1.ConditionTrue, 0.0
	if reachable {
		value = 1
	}
	c.metric.WithLabelValues(c.server).Set(value)
	c.mu.Lock()
	changed := c.state.Status != state.Status || c.state.Reason != state.Reason
	if changed {
		c.state = state
	}
	handlers := c.handlers
	c.mu.Unlock()
	if !changed {
		return
	}
	if reachable {
		klog.FromContext(ctx).Info("Nodes of the workload cluster can be listed", "server", c.server)
	} else {
		klog.FromContext(ctx).Error(errors.New(state.Message), "Workload cluster cannot be used", "server", c.server)
	}
	for _, handler := range handlers {
		handler()
	}
}

// conditionOf returns the condition after a request to an API server.
func conditionOf(server string, err error) metav1.Condition {
	if err == nil {
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReachable}
	}
	reason := v1beta1.ReasonWorkloadClusterUnreachable
	if status := apierrors.ReasonForError(err); status != metav1.StatusReasonUnknown {
		// For example Unauthorized or Forbidden.
		reason = string(status)
	}
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(
		"the Nodes of the workload cluster at %s cannot be listed; drains and Pods that request machines wait: %v", server, err)}
}
