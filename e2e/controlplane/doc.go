// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controlplane runs a real Kubernetes control plane on one small
// machine, without containers: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, the Cluster API core manager with its webhooks, and kwok,
// which simulates the kubelets. Each is a child process that listens on 127.0.0.1
// only.
//
// All state of a running control plane is below one directory:
//
//	kubeconfig            administrator access
//	audit.log             every write that reached the API server
//	logs/COMPONENT.log    what the component printed
//	pids/COMPONENT        its process id
//	components/           how each was started, so that it can be started again
//	pki/, kubeconfigs/    keys, certificates and the components' own access
//	config/               files that components are configured by
//	etcd/                 the data
//
// Processes are identified through /proc and pidfds: the package needs Linux.
package controlplane
