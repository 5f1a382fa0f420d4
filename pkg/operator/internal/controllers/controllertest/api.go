// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controllertest gives the tests of controllers an API server in memory,
// and caches that show of it what a test wants them to.
package controllertest

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
)

// API is an API server of our kinds in memory.
type API struct {
	*fake.Clientset
	*apitest.Server

	t testing.TB
}

// NewAPI makes an API server that has objects, with a generation and a uid each.
func NewAPI(t testing.TB, objects ...runtime.Object) *API {
	clientset := fake.NewClientset()
	return &API{Clientset: clientset, Server: apitest.NewServer(t, clientset, objects...), t: t}
}
