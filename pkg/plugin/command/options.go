// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/base/terminal"
	"nstance.dev/operator/pkg/plugin/gather"
	"nstance.dev/operator/pkg/plugin/status"
)

// options are the flags of all commands.
type options struct {
	streams genericiooptions.IOStreams
	config  *genericclioptions.ConfigFlags
	// workload is the kubeconfig of the cluster with the Nodes and Pods, empty if they are in
	// the cluster of the Nstance objects.
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
	// As kubectl has it: client-go logs requests from 6 on.
	verbosity := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	flags.AddGoFlag(verbosity.Lookup("v"))
}

// validate returns an error for a value of --output that does not exist.
func (o *options) validate() error {
	switch o.output {
	case "", outputWide, outputJSON, outputYAML:
		return nil
	}
	return fmt.Errorf("--output must be wide, json or yaml, and is %q", o.output)
}

// gatherer returns a Gatherer with the kubeconfigs and the namespace of the flags.
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

// printing returns the options of tables.
func (o *options) printing(now time.Time) status.PrintOptions {
	return status.PrintOptions{Wide: o.output == outputWide, NoHeaders: o.noHeaders, Now: now}
}

// print writes a structure as JSON or YAML if --output requests it, else by a function. The
// error is errIncomplete if objects are unknown.
func (o *options) print(structure any, unknown []string, table func(io.Writer) error) error {
	if err := o.write(structure, table); err != nil {
		return err
	}
	if len(unknown) > 0 {
		return errIncomplete
	}
	return nil
}

// marshalYAML escapes control characters in JSON first: the conversion to YAML rejects them
// (https://yaml.org/spec/1.2.2/#51-character-set), and a machine could choose a message that nobody
// can read.
func marshalYAML(structure any) ([]byte, error) {
	data, err := json.Marshal(structure)
	if err != nil {
		return nil, err
	}
	var escaped bytes.Buffer
	if _, err := terminal.NewWriter(&escaped).Write(data); err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(escaped.Bytes())
}

func (o *options) write(structure any, table func(io.Writer) error) error {
	var data []byte
	var err error
	switch o.output {
	case outputJSON:
		if data, err = json.MarshalIndent(structure, "", "    "); err == nil {
			data = append(data, '\n')
		}
	case outputYAML:
		data, err = marshalYAML(structure)
	default:
		return table(o.streams.Out)
	}
	if err != nil {
		return err
	}
	_, err = o.streams.Out.Write(data)
	return err
}
