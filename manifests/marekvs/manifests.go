// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvs contains the CRD of the marekvs operator, as manifests/marekvs/crd has it.
package marekvs

import _ "embed"

// CRD is the CustomResourceDefinition of MarekvsCluster, YAML.
//
//go:embed crd/marekvs.io_marekvsclusters.yaml
var CRD []byte
