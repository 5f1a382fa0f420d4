// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvs tests the marekvs operator and its CRD on a real API server. Tests that
// stop operators run before the parallel tests.
package marekvs

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/e2e/marekvsstore"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

// env is the cluster that all tests of this package share.
var env struct {
	binaries     *controlplane.Binaries
	controlPlane *controlplane.ControlPlane
	config       *rest.Config
	kube         kubernetes.Interface
	marekvs      versioned.Interface
	store        *marekvsstore.Store
	// operators are two replicas, of which one leads.
	operators []*controlplane.Component
}

// namespace is where all objects of the tests are.
const namespace = "default"

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts a control plane, the store and the operator, and runs the tests.
func run(ctx context.Context, m *testing.M) (code int, err error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return 1, err
	}
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(ctx)
	if err != nil {
		return 1, err
	}
	program, err := builder.Marekvs(ctx)
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "marekvs-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cp, err := controlplane.Start(ctx, controlplane.Options{
		Dir: dir, Binaries: binaries, Without: []string{controlplane.Scheduler, controlplane.CAPI, controlplane.KWOK},
	})
	if err != nil {
		return 1, err
	}
	defer func() { _ = cp.Stop(context.WithoutCancel(ctx)) }()

	env.binaries, env.controlPlane, env.config = &binaries, cp, cp.AdminConfig()
	env.config.QPS = -1
	if env.kube, err = kubernetes.NewForConfig(env.config); err != nil {
		return 1, err
	}
	if env.marekvs, err = versioned.NewForConfig(env.config); err != nil {
		return 1, err
	}
	if err := marekvsoperator.Install(ctx, cp, root); err != nil {
		return 1, err
	}
	// Every Pod of these tests must conform to the strictest standard
	// (https://kubernetes.io/docs/concepts/security/pod-security-standards/).
	restricted := []byte(`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`)
	if _, err := env.kube.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, restricted, metav1.PatchOptions{}); err != nil {
		return 1, err
	}
	storeCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	if env.store, err = marekvsstore.Start(storeCtx, marekvsstore.Options{Kube: env.kube, Namespace: namespace}); err != nil {
		return 1, err
	}
	for _, name := range []string{"operator-a", "operator-b"} {
		operator, err := marekvsoperator.Start(ctx, cp, marekvsoperator.Options{
			Name: name, Program: program, Dir: dir, MetricsPort: env.store.Port,
		})
		if err != nil {
			return 1, err
		}
		env.operators = append(env.operators, operator)
	}
	return m.Run(), nil
}
