// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/installation"
)

const (
	samplePool      = "workers" // of manifests/samples
	importedPool    = "main"    // of the servers' configuration
	samplePoolNodes = 3
	sampleNodes     = 6 // of both
	sampleTimeout   = 3 * time.Minute

	running = "Running" // the phase of a MachinePool
)

// notReadyError is the error when the sample is not ready in time.
type notReadyError struct{ state string }

func (e notReadyError) Error() string {
	return fmt.Sprintf("the sample is not up after %s: %s", sampleTimeout, e.state)
}

// samplePools returns the pools of a cluster, and the number of their Nodes.
func (d devcluster) samplePools() (pools []string, nodes int) {
	if d.machines {
		return []string{samplePool}, samplePoolNodes
	}
	return []string{samplePool, importedPool}, sampleNodes
}

// waitForSample waits until the pools are Running, and all of their Nodes are Ready.
func (d devcluster) waitForSample(ctx context.Context, config *rest.Config) error {
	pools, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	nodes, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	names, count := d.samplePools()
	fmt.Fprintf(d.out, "waiting for the pools: %s\n", strings.Join(names, ", "))
	var state string
	err = wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, sampleTimeout, true,
		func(ctx context.Context) (bool, error) {
			ready := readyNodes(ctx, nodes)
			state = fmt.Sprintf("%d of %d Nodes are Ready", ready, count)
			up := ready == count
			for _, name := range names {
				phase := poolPhase(ctx, pools, name)
				state += fmt.Sprintf(", the phase of MachinePool %s is %q", name, phase)
				up = up && phase == running
			}
			return up, nil
		})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return notReadyError{state}
	}
	return nil
}

// poolPhase returns the phase of a MachinePool, "" when it cannot be read.
func poolPhase(ctx context.Context, client dynamic.Interface, name string) string {
	resource := schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machinepools"}
	pool, err := client.Resource(resource).Namespace(installation.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	phase, _, _ := unstructured.NestedString(pool.Object, "status", "phase")
	return phase
}

func readyNodes(ctx context.Context, client kubernetes.Interface) int {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0
	}
	ready := 0
	for _, node := range nodes.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	return ready
}

func (d devcluster) printReady(took time.Duration) {
	var commands strings.Builder
	replicas := 10
	if d.machines {
		replicas = 5
	}
	list := []string{
		"export KUBECONFIG=" + filepath.Join(d.dir, "kubeconfig"),
		`export PATH="` + filepath.Join(d.dir, "bin") + `:$PATH"`,
		fmt.Sprintf("kubectl scale machinepool %s --replicas=%d", samplePool, replicas),
		"kubectl get nstanceshardgroups,machinepools,nodes",
		"kubectl nstance status",
	}
	if d.machines {
		list = append(list, "kubectl apply -f "+filepath.Join(d.root, "manifests", "samples", "web.yaml"))
	}
	for _, command := range list {
		fmt.Fprintf(&commands, "  %s\n", command)
	}
	fmt.Fprintf(d.out, "\nReady after %s. In another terminal:\n\n%s\nCtrl-C stops everything.\n",
		took.Round(time.Second), commands.String())
}
