// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package standalone has tests of shard servers that run without an operator, whose place the
// tests take: the programs nstance-server and nstance-agent, and a storage that is S3. Where
// instances are containers or virtual machines there is no Kubernetes; make test-machines runs
// these tests. Where they are Nodes there is only an API server.
package standalone
