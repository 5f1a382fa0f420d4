// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/kubernetes"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
)

// interruptedClient calls before between the last read of a sync and its write of a
// StatefulSet.
type interruptedClient struct {
	kubernetes.Interface

	before func()
}

func (c *interruptedClient) AppsV1() appsv1client.AppsV1Interface {
	return &interruptedApps{c.Interface.AppsV1(), c.before}
}

type interruptedApps struct {
	appsv1client.AppsV1Interface

	before func()
}

func (c *interruptedApps) StatefulSets(namespace string) appsv1client.StatefulSetInterface {
	return &interruptedSets{c.AppsV1Interface.StatefulSets(namespace), c.before}
}

type interruptedSets struct {
	appsv1client.StatefulSetInterface

	before func()
}

func (c *interruptedSets) Apply(ctx context.Context, set *appsv1ac.StatefulSetApplyConfiguration, options metav1.ApplyOptions) (*appsv1.StatefulSet, error) {
	c.before()
	return c.StatefulSetInterface.Apply(ctx, set, options)
}
