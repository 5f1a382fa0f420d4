#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Writes everything that is generated: protobuf code, deepcopy functions,
# OpenAPI definitions, apply configurations, clientset, listers, informers, CRDs
# and their reference in docs, and the document of the benchmarks. Every generator is a tool of go.mod or hack/tools/go.mod.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

header=hack/boilerplate.go.txt
module=nstance.dev/operator
apis=($module/pkg/apis/infrastructure/v1beta1 $module/pkg/apis/marekvs/v1alpha1)
out=pkg/generated
tools=hack/tools/go.mod

(cd proto && go tool -modfile=../$tools buf lint && go tool -modfile=../$tools buf generate)

go tool deepcopy-gen --go-header-file $header --output-file zz_generated.deepcopy.go "${apis[@]}"

# The schema of our kinds goes through a file that is not kept.
schema=$(mktemp)
trap 'rm -f "$schema"' EXIT
go tool openapi-gen --go-header-file $header --output-file zz_generated.openapi.go \
	--output-dir $out/openapi --output-pkg $module/$out/openapi --report-filename /dev/null \
	k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version "${apis[@]}"
go run ./hack/models-schema >"$schema"

rm -rf $out/applyconfiguration $out/clientset $out/listers $out/informers
go tool applyconfiguration-gen --go-header-file $header --openapi-schema "$schema" \
	--output-dir $out/applyconfiguration --output-pkg $module/$out/applyconfiguration "${apis[@]}"
go tool client-gen --go-header-file $header --clientset-name versioned --input-base "" --input "$(IFS=, && echo "${apis[*]}")" \
	--apply-configuration-package $module/$out/applyconfiguration \
	--output-dir $out/clientset --output-pkg $module/$out/clientset
go tool lister-gen --go-header-file $header \
	--output-dir $out/listers --output-pkg $module/$out/listers "${apis[@]}"
go tool informer-gen --go-header-file $header \
	--versioned-clientset-package $module/$out/clientset/versioned --listers-package $module/$out/listers \
	--output-dir $out/informers --output-pkg $module/$out/informers "${apis[@]}"

go tool -modfile=$tools controller-gen crd paths=./pkg/apis/infrastructure/... output:crd:dir=manifests/crd
go tool -modfile=$tools controller-gen crd paths=./pkg/apis/marekvs/... output:crd:dir=manifests/marekvs/crd
go run ./hack/apireference -metadata pkg/apis/infrastructure/v1beta1/labels.go manifests/crd/infrastructure.cluster.x-k8s.io_*.yaml >docs/api.md
go run ./hack/apireference manifests/marekvs/crd/marekvs.io_*.yaml >docs/marekvs-api.md
go run ./hack/benchtables
