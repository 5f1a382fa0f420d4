// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"slices"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
	"nstance.dev/operator/e2e/previous"
)

// cluster lists the inputs of a suite that starts a cluster with Nstance.
var cluster = []string{controlplane.ControlPlaneInput, "nstance-operator", "nstance-server", inputs.Manifests, records}

// with returns the inputs of a cluster and further inputs.
func with(more ...string) []string { return slices.Concat(cluster, more) }

// suites are the inputs of the packages with tests. A package that is not in the list
// depends on every input. A package that uses an input that it does not list fails.
var suites = map[string][]string{
	"agents":      {"nstance-agent", "agentserver"},
	"attackers":   with("nstance-agent", "agentserver"),
	"autoscaler":  with("marekvs-operator"),
	"capi":        cluster,
	"drains":      with("kubectl-nstance"),
	"external":    with("nstance-admin", inputs.Docs),
	"faults":      with("nstance-admin"),
	"helm":        with(previous.Input),
	"machines":    with("marekvs-operator"),
	"marekvs":     {controlplane.ControlPlaneInput, "marekvs-operator", inputs.Docs, inputs.Manifests},
	"monitoring":  with("kubectl-nstance", inputs.Docs),
	"move":        with("nstance-admin", inputs.Docs),
	"ondemand":    cluster,
	"operator":    cluster,
	"procedures":  with("nstance-admin", inputs.Docs),
	"scale":       cluster,
	"selfmanaged": with("nstance-admin", inputs.Docs),
	"shardfaults": cluster,
	"shardserver": {controlplane.ControlPlaneInput, "nstance-server", inputs.Manifests, records},
	"spotnotices": cluster,
	"standalone":  {controlplane.ControlPlaneInput, "nstance-agent", "nstance-server"},
	"upgrade":     with("nstance-admin", inputs.Docs, previous.Input),
	"walk":        cluster,

	// Tests of manifests and support packages.
	"charts":         {inputs.Docs, inputs.Manifests},
	"clusterdns":     nil,
	"cmd/devcluster": nil,
	"cmd/suites":     {inputs.Docs, inputs.Manifests},
	"controlplane":   {controlplane.ControlPlaneInput, inputs.Manifests},
	"crds":           {inputs.Manifests},
	"demo":           {inputs.Docs, inputs.Manifests},
	"dockerhost":     nil,
	"faultproxy":     nil,
	"gobuild":        nil,
	"inputs":         nil,
	"leaks":          nil,
	"podroutes":      nil,
	"previous":       {previous.Input},
	"rights":         {inputs.Manifests},
	"runbook":        {inputs.Docs, inputs.Manifests},
	"tcpproxy":       nil,
	"testcluster":    nil,
}

// all lists every input.
var all = slices.Concat(controlplane.Products, []string{
	controlplane.ControlPlaneInput, previous.Input, inputs.Docs, inputs.Manifests, records,
})

// inputsOf returns the inputs of a package.
func inputsOf(name string) []string {
	if own, listed := suites[name]; listed {
		return own
	}
	return all
}
