// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// The discovery documents of Google's APIs, with which tests check requests and
// responses. A module of its own, so that the libraries beside them are no dependencies of
// ours.
module nstance.dev/operator/hack/discovery

go 1.26.8

require google.golang.org/api v0.310.0
