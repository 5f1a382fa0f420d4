// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package standalone has tests of shard servers that run without Kubernetes: the programs
// nstance-server and nstance-agent, a storage that is S3, and instances that are containers
// or virtual machines. The tests take the place of the operator.
package standalone
