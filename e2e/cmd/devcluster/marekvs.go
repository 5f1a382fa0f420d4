// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/e2e/marekvsstore"
	marekvs "nstance.dev/operator/pkg/marekvs/operator"
)

const (
	marekvsAccount = "system:serviceaccount:" + marekvsoperator.Namespace + ":marekvs-operator"
	// marekvsPods selects the Pods and the volume claims of all clusters.
	marekvsPods = "app.kubernetes.io/name=marekvs"
	// removeTimeout is how long the Pods may take to terminate.
	removeTimeout = time.Minute
)

// newMarekvsCommand returns the commands of the marekvs operator.
func newMarekvsCommand(in func(action) runE) *cobra.Command {
	group := &cobra.Command{Use: "marekvs", Short: "Run the marekvs operator in a running dev cluster, with nodes that are simulated"}
	var windows bool
	up := &cobra.Command{
		Use:   "up",
		Short: "Install the operator and its example, and stay in the foreground until Ctrl-C, which removes them",
		Args:  cobra.NoArgs,
		RunE:  in(func(ctx context.Context, d devcluster, _ []string) error { return d.marekvsUp(ctx, windows) }),
	}
	up.Flags().BoolVar(&windows, "windows", false, "keep the windows of the example: minutes instead of seconds")
	store := marekvsstore.Remote{Port: marekvsPort}
	group.AddCommand(up,
		&cobra.Command{
			Use:     "load CLUSTER COMMANDS",
			Short:   "Set how many commands per second a cluster executes",
			Example: "  devcluster marekvs load demo 22000",
			Args:    cobra.ExactArgs(2),
			RunE: in(func(ctx context.Context, d devcluster, args []string) error {
				return d.setMarekvs(store.SetRate(ctx, args[0], args[1]))
			}),
		},
		&cobra.Command{
			Use:     "underreplicated CLUSTER PARTITIONS",
			Short:   "Set how many partitions of a cluster have too few owners",
			Example: "  devcluster marekvs underreplicated demo 3",
			Args:    cobra.ExactArgs(2),
			RunE: in(func(ctx context.Context, d devcluster, args []string) error {
				return d.setMarekvs(store.SetUnderreplicated(ctx, args[0], args[1]))
			}),
		},
		&cobra.Command{
			Use:   "down",
			Short: "Stop a running up, which removes the operator and its clusters",
			Args:  cobra.NoArgs,
			RunE:  in(func(ctx context.Context, d devcluster, _ []string) error { return d.marekvsDown(ctx) }),
		})
	return group
}

// marekvs returns a devcluster whose state folder is the subfolder of marekvs.
func (d devcluster) marekvs() devcluster {
	d.dir = filepath.Join(d.dir, "marekvs")
	return d
}

// setMarekvs explains the error of a store that does not run.
func (d devcluster) setMarekvs(err error) error {
	if err == nil {
		return nil
	}
	if running := d.marekvs().checkUp(); running != nil {
		return errors.New("the marekvs operator does not run; start it with: devcluster marekvs up")
	}
	return err
}

func (d devcluster) marekvsDown(ctx context.Context) error {
	lock, err := acquire(d.marekvs().dir)
	var locked lockedError
	if errors.As(err, &locked) {
		lock, err = d.marekvs().stopUp(ctx, locked.pid)
	}
	if err != nil {
		return err
	}
	lock.release()
	return nil
}

// marekvsUp runs the operator and the store until ctx is done, and removes what they created.
func (d devcluster) marekvsUp(ctx context.Context, windows bool) (err error) {
	if err := d.checkUp(); err != nil {
		return err
	}
	lock, err := acquire(d.marekvs().dir)
	if err != nil {
		return err
	}
	defer lock.release()
	kubeconfig := filepath.Join(d.dir, "kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	manifests, sample, err := d.marekvsManifests(windows)
	if err != nil {
		return err
	}
	if err := controlplane.Apply(ctx, config, "devcluster", manifests); err != nil {
		return err
	}
	storeCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if _, err := marekvsstore.Start(storeCtx, marekvsstore.Options{
		Kube: kube, Namespace: installation.Namespace, Port: marekvsPort,
	}); err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(d.out, "\nremoving the marekvs operator and its clusters")
		err = errors.Join(err, removeMarekvs(context.WithoutCancel(ctx), config, kube, manifests, sample))
	}()
	if err := controlplane.Apply(ctx, config, "devcluster", sample); err != nil {
		return err
	}
	impersonating, err := controlplane.Impersonate(kubeconfig, filepath.Join(d.marekvs().dir, "kubeconfig"), marekvsAccount)
	if err != nil {
		return err
	}
	d.printMarekvs()
	return marekvs.Run(ctx, marekvsOptions(impersonating))
}

// marekvsOptions returns options with short intervals, for a person who watches the operator.
func marekvsOptions(kubeconfig string) *marekvs.Options {
	options := marekvs.DefaultOptions()
	options.Kubeconfig, options.Namespace = kubeconfig, marekvsoperator.Namespace
	options.HTTPAddress, options.MetricsPort = fmt.Sprintf("127.0.0.1:%d", marekvsHTTPPort), marekvsPort
	options.SyncPeriod, options.RateWindow, options.SettleTime = time.Second, 3*time.Second, 3*time.Second
	return options
}

// marekvsManifests returns the manifests without the Deployment, because the operator is this
// process, and the example.
func (d devcluster) marekvsManifests(windows bool) (manifests, sample []*unstructured.Unstructured, err error) {
	all, err := controlplane.Render(filepath.Join(d.root, "manifests", "marekvs"))
	if err != nil {
		return nil, nil, err
	}
	for _, object := range all {
		if object.GetKind() != "Deployment" {
			manifests = append(manifests, object)
		}
	}
	if sample, err = controlplane.Render(filepath.Join(d.root, "manifests", "marekvs", "samples")); err != nil {
		return manifests, sample, err
	}
	for _, object := range sample {
		object.SetNamespace(installation.Namespace)
		if windows {
			continue
		}
		for field, seconds := range map[string]int64{"scaleDownStabilizationSeconds": 20, "scaleUpCooldownSeconds": 5} {
			if err := unstructured.SetNestedField(object.Object, seconds, "spec", "autoscale", field); err != nil {
				return nil, nil, err
			}
		}
	}
	return manifests, sample, nil
}

func (d devcluster) printMarekvs() {
	fmt.Fprintf(d.out, `
The operator runs. In another terminal:

  export KUBECONFIG=%[1]s/kubeconfig
  export PATH="%[1]s/bin:$PATH"
  kubectl get mkv -w
  %[2]s marekvs load demo 22000           # from 3 nodes to 5
  %[2]s marekvs underreplicated demo 3    # no node is removed
  %[2]s marekvs load demo 6000
  %[2]s marekvs underreplicated demo 0    # from 5 nodes to 4, and to 3

Ctrl-C, or %[2]s marekvs down, removes everything.

`, d.dir, os.Args[0])
}

// removeMarekvs deletes the example, its volume claims and the manifests. Until then the store
// still terminates Pods.
func removeMarekvs(ctx context.Context, config *rest.Config, kube kubernetes.Interface, manifests, sample []*unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if err := controlplane.Delete(ctx, config, sample); err != nil {
		return err
	}
	selected := metav1.ListOptions{LabelSelector: marekvsPods}
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		pods, err := kube.CoreV1().Pods(installation.Namespace).List(ctx, selected)
		return err == nil && len(pods.Items) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the end of the Pods: %w", err)
	}
	return errors.Join(
		kube.CoreV1().PersistentVolumeClaims(installation.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, selected),
		kube.CoreV1().Nodes().Delete(ctx, marekvsstore.NodeName, metav1.DeleteOptions{}),
		controlplane.Delete(ctx, config, manifests),
	)
}
