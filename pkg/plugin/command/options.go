// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/pkg/plugin/gather"
	"nstance.dev/operator/pkg/plugin/printing"
)

// options are the flags of all commands.
type options struct {
	streams genericiooptions.IOStreams
	config  *genericclioptions.ConfigFlags
	// workload is the kubeconfig of the cluster with the Nodes and Pods, if it is another
	// one.
	workload      string
	allNamespaces bool
	output        string
	noHeaders     bool
}

// Values of --output.
const (
	outputWide = "wide"
	outputJSON = "json"
	outputYAML = "yaml"
)

func (o *options) addFlags(flags *pflag.FlagSet) {
	o.config.AddFlags(flags)
	flags.StringVar(&o.workload, "workload-kubeconfig", "", "kubeconfig of the cluster with the Nodes and Pods, if they are in another cluster than the objects of Nstance")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "read the objects of all namespaces")
	flags.StringVarP(&o.output, "output", "o", "", "output format: wide, json or yaml")
	flags.BoolVar(&o.noHeaders, "no-headers", false, "print tables without headers")
}

// validate returns an error for a value that no command has.
func (o *options) validate() error {
	switch o.output {
	case "", outputWide, outputJSON, outputYAML:
		return nil
	}
	return fmt.Errorf("--output must be wide, json or yaml, and is %q", o.output)
}

// gatherer returns what reads the objects.
func (o *options) gatherer() (*gather.Gatherer, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	loader := o.config.ToRawKubeConfigLoader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, err
	}
	if o.allNamespaces {
		namespace = ""
	}
	config, err := o.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	var nodes *rest.Config
	if o.workload != "" {
		if nodes, err = clientcmd.BuildConfigFromFlags("", o.workload); err != nil {
			return nil, fmt.Errorf("--workload-kubeconfig: %w", err)
		}
	}
	return gather.New(config, nodes, namespace)
}

// table reports whether the output is a table.
func (o *options) table() bool { return o.output == "" || o.output == outputWide }

// printing returns how tables are printed.
func (o *options) printing(now time.Time) printing.Options {
	return printing.Options{Wide: o.output == outputWide, NoHeaders: o.noHeaders, Now: now}
}
