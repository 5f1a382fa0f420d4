// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command kubelet is the stock kubelet, for nodes that are containers. It is not a part of
// command kube, which most tests link and start without it.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics, as in the stock binary
	_ "k8s.io/component-base/metrics/prometheus/version"  // build information metric
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
