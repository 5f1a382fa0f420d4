// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"sync"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/plugin/objects"
)

// byOperator selects the events of the operator.
const byOperator = "reportingController=nstance-operator"

// Dashboard reads what "kubectl nstance dashboard" shows: what Status reads of all pools,
// and the events of the operator.
func (g *Gatherer) Dashboard(ctx context.Context) (*objects.Snapshot, error) {
	var ofObjects, ofNodes objects.Read[eventsv1.Event]
	var reads sync.WaitGroup
	reads.Go(func() { ofObjects = events(ctx, g.kube, g.namespace, byOperator) })
	reads.Go(func() { ofNodes = g.recentNodeEvents(ctx) })
	s, err := g.Status(ctx, "")
	reads.Wait()
	if err != nil {
		return nil, err
	}
	s.RecentEvents, s.RecentNodeEvents = ofObjects, ofNodes
	if s.Nodes.Unknown == inOtherCluster {
		s.RecentNodeEvents = objects.Unread[eventsv1.Event](inOtherCluster)
	}
	return s, nil
}

// recentNodeEvents reads the events of the operator about Nodes, unless they are among
// those of the namespace.
func (g *Gatherer) recentNodeEvents(ctx context.Context) objects.Read[eventsv1.Event] {
	if !g.separate && (g.namespace == metav1.NamespaceAll || g.namespace == metav1.NamespaceDefault) {
		return objects.Read[eventsv1.Event]{}
	}
	return events(ctx, g.nodes, metav1.NamespaceDefault, byOperator)
}
