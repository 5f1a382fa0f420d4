// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command models-schema prints the OpenAPI v2 schema of our kinds. The
// generator of apply configurations reads it, and builds into them the merge
// rules that server-side apply and the generated fake clientset need.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"nstance.dev/operator/pkg/generated/openapi"
)

func main() {
	definitions := spec.Definitions{}
	refer := func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + modelName(name))
	}
	for name, definition := range openapi.GetOpenAPIDefinitions(refer) {
		schema := definition.Schema
		if v2, ok := definition.Schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			schema = v2
		}
		definitions[modelName(name)] = schema
	}
	swagger := spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "nstance-operator", Version: "v1beta1"}},
		Definitions: definitions,
	}}
	if err := json.NewEncoder(os.Stdout).Encode(swagger); err != nil {
		log.Fatalf("write schema: %v", err)
	}
}

// modelName turns a Go type path into the reversed-domain name that the
// generator of apply configurations looks up; names that the generated
// definitions already carry in that form stay as they are.
func modelName(name string) string {
	if strings.Contains(name, "/") {
		return util.ToRESTFriendlyName(name)
	}
	return name
}
