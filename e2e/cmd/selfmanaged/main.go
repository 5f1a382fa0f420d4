// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command selfmanaged runs a cluster that manages itself until Ctrl-C (e2e/selfmanaged).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/selfmanaged"
)

func main() {
	replicated := flag.Bool("replicated", false, "a machine of the control plane on each shard, instead of one with volumes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the next signal kills the program at once.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, *replicated); err != nil {
		fmt.Fprintln(os.Stderr, "selfmanaged:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, replicated bool) (err error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	if err := dockerhost.CheckBuild(); err != nil {
		return err
	}
	dir := filepath.Join(root, ".dev", "selfmanaged")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	options, release, err := selfmanaged.Prepare(ctx, root, dir, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	options.Replicated = replicated
	cluster, err := selfmanaged.Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close(ctx)) }()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig); err != nil {
		return err
	}
	fmt.Printf(`The shard servers run, and create the control plane: in a minute

  export KUBECONFIG=%s
  kubectl get nodes,machinepools

Ctrl-C removes everything.
`, kubeconfig)
	<-ctx.Done()
	return nil
}
