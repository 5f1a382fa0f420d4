// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvsoperator installs the marekvs operator in a control plane, and runs it with
// the rights of its manifests and with times that are short.
package marekvsoperator

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
)

const (
	// Namespace is the namespace in the manifests.
	Namespace = "marekvs-system"
	// LeaseDuration is how long a standby waits for a silent leader.
	LeaseDuration = 6 * time.Second

	account = "system:serviceaccount:" + Namespace + ":marekvs-operator"
)

// Install applies the shipped manifests in the folder root/manifests/marekvs, and waits until
// the kind is served. It leaves out the Deployment: Start runs the operator.
func Install(ctx context.Context, cp *controlplane.ControlPlane, root string) error {
	objects, err := controlplane.Render(filepath.Join(root, "manifests", "marekvs"))
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if err := controlplane.Apply(ctx, cp.AdminConfig(), "test", objects); err != nil {
		return err
	}
	client, err := versioned.NewForConfig(cp.AdminConfig())
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := client.MarekvsV1alpha1().MarekvsClusters(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
}

// Options of an operator.
type Options struct {
	// Name of the process. Its log and its kubeconfig have it too.
	Name string
	// Program is the path of the binary, Dir a folder for the kubeconfig.
	Program, Dir string
	// MetricsPort is the port at which Pods of the store serve their metrics.
	MetricsPort int
	// Flags override the flags that Start sets.
	Flags []string
}

// Start runs an operator, and returns when it is ready. It ends with the control plane.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*controlplane.Component, error) {
	kubeconfig, err := controlplane.Impersonate(cp.KubeconfigPath(), filepath.Join(o.Dir, o.Name+".kubeconfig"), account)
	if err != nil {
		return nil, err
	}
	var port int
	if err := controlplane.FillInPorts([]*int{&port}); err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return cp.Run(ctx, controlplane.Spec{
		Name: o.Name,
		Argv: append([]string{
			o.Program, "--kubeconfig", kubeconfig, "--namespace", Namespace, "--http-address", address,
			"--metrics-port", strconv.Itoa(o.MetricsPort),
			"--sync-period", "500ms", "--rate-window", "1s", "--settle-time", "2s",
			"--leader-elect-lease-duration", LeaseDuration.String(), "--leader-elect-renew-deadline", "4s", "--leader-elect-retry-period", "500ms",
		}, o.Flags...),
		Ports: []int{port},
		Ready: controlplane.Probe{URL: "http://" + address + "/readyz"},
	})
}
