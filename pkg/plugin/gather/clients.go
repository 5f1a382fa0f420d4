// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gather reads what the commands of the plugin need from the API server. It only
// gets and lists, in pages, and never lists the Pods of the whole cluster.
package gather

import (
	"errors"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

// Limits of the requests of one command, as kubectl has them.
const (
	qps   = 50
	burst = 300
)

// Gatherer reads objects.
type Gatherer struct {
	nstance versioned.Interface
	capi    *capi.Client
	kube    kubernetes.Interface
	// nodes is the client of the cluster with the Nodes and Pods, nil if that is another
	// cluster whose kubeconfig was not given.
	nodes kubernetes.Interface
	// separate is set if nodes was given explicitly.
	separate bool
	// namespace is empty for all namespaces.
	namespace string
}

// New returns a Gatherer. nodes is the configuration of the cluster with the Nodes and
// Pods, nil for the same cluster. An empty namespace means all namespaces.
func New(config, nodes *rest.Config, namespace string) (*Gatherer, error) {
	g := &Gatherer{namespace: namespace, separate: nodes != nil}
	config = limited(config)
	var errs [4]error
	g.nstance, errs[0] = versioned.NewForConfig(config)
	g.capi, errs[1] = capi.NewForConfig(config)
	g.kube, errs[2] = kubernetes.NewForConfig(config)
	g.nodes = g.kube
	if nodes != nil {
		g.nodes, errs[3] = kubernetes.NewForConfig(limited(nodes))
	}
	return g, errors.Join(errs[:]...)
}

func limited(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = qps, burst
	return config
}
