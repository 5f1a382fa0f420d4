// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestValidateLoadBalancers(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"two groups", `{"network_endpoint_groups": ["web", "admin"], "port": 443}`, ""},
		{"none", `{}`, "web.network_endpoint_groups: Required value"},
		{"an address", `{"network_endpoint_groups": ["zones/a/networkEndpointGroups/web"]}`, "web.network_endpoint_groups[0]: Invalid value"},
		{"one twice", `{"network_endpoint_groups": ["web", "web"]}`, "web.network_endpoint_groups[1]: Duplicate value"},
		{"a port", `{"network_endpoint_groups": ["web"], "port": 65536}`, "web.port: Invalid value: 65536: must be between 1 and 65535"},
		{"port zero", `{"network_endpoint_groups": ["web"], "port": 0}`, "web.port: Invalid value: 0"},
		{"a type", `{"network_endpoint_groups": "web"}`, "must be a list of strings"},
		{"an unknown field", `{"network_endpoint_groups": ["web"], "zone": "a"}`, "zone: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var errs field.ErrorList
			object, err := jsonc.Parse([]byte(tc.text), &errs)
			require.NoError(t, err)
			settings := (&Options{}).ReadLoadBalancer(object)
			object.Finish()
			errs = append(errs, settings.Validate(field.NewPath("web"))...)
			if tc.want == "" {
				require.Empty(t, errs)
				return
			}
			assert.Contains(t, strings.Join(providertest.Messages(errs), "\n"), tc.want)
		})
	}
}
