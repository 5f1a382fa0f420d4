// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command kube is etcd, etcdctl, kube-apiserver, kube-controller-manager,
// kube-scheduler and kubectl in one binary. The six share nearly all of
// their code, so linking them once keeps the build short and the disk small.
//
// The part to run is the base name of the program (through a symbolic link)
// or else the first argument: "kube kube-apiserver --etcd-servers=...".
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdctl/v3/ctlv3"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics, as in the stock binaries
	_ "k8s.io/component-base/metrics/prometheus/version"  // build information metric
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// parts maps the name of a part to its main function. Each reads os.Args.
var parts = map[string]func() int{
	"etcd":                    runEtcd,
	"etcdctl":                 runEtcdctl,
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 runKubectl,
}

func main() {
	part, ok := choose()
	if !ok {
		names := slices.Sorted(maps.Keys(parts))
		fmt.Fprintf(os.Stderr, "usage: kube PART [ARGUMENTS]\nparts: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(part())
}

// choose finds the part to run and drops its name from os.Args when it was
// given as an argument.
func choose() (func() int, bool) {
	if part, ok := parts[filepath.Base(os.Args[0])]; ok {
		return part, true
	}
	if len(os.Args) < 2 {
		return nil, false
	}
	part, ok := parts[os.Args[1]]
	os.Args = os.Args[1:]
	return part, ok
}

func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runEtcdctl() int {
	ctlv3.MustStart()
	return 0
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints the error the way kubectl does and exits
	}
	return 0
}
