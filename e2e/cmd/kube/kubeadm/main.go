// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command kubeadm is the stock kubeadm, and under the name kube-proxy the stock kube-proxy, for nodes that
// are containers. They are not parts of command kube, which most tests link and start without them.
package main

import (
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics, as in the stock binaries
	_ "k8s.io/component-base/metrics/prometheus/version"  // build information metric
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
)

func main() {
	if filepath.Base(os.Args[0]) == "kube-proxy" {
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	}
	errors.HandleError(kubeadm.Run())
}
