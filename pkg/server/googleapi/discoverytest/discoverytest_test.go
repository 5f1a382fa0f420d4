// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package discoverytest

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	d := Load(t, Compute)
	insert, variables, err := d.Find(http.MethodPost, "/compute/v1/projects/p/zones/z-a/instances")
	require.NoError(t, err)
	assert.Equal(t, "compute.instances.insert", insert.ID)
	assert.Equal(t, map[string]string{"project": "p", "zone": "z-a"}, variables)

	for path, want := range map[string]string{
		"/compute/v1/projects/p/zones/Z/instances":      "does not match",
		"/compute/v1/projects/p/zones/z/instances/a/b/": "no method is",
		"/projects/p/zones/z/instances":                 "is not below",
	} {
		_, _, err := d.Find(http.MethodPost, path)
		assert.ErrorContains(t, err, want)
	}
	require.NoError(t, insert.CheckQuery(url.Values{"requestId": {"x"}, "fields": {"name"}}))
	assert.ErrorContains(t, insert.CheckQuery(url.Values{"request_id": {"x"}}), "has no parameter request_id")
	assert.ErrorContains(t, insert.CheckQuery(url.Values{"requestId": {"x", "y"}}), "has 2 values")
	assert.ErrorContains(t, insert.CheckQuery(url.Values{"zone": {"x"}}), "has no parameter zone")

	for body, want := range map[string]string{
		`{"name":"a"}`:                   "",
		`{}`:                             ".name: is required",
		`{"name":"A"}`:                   "does not match",
		`{"name":1}`:                     "is no string",
		`{"name":"a","x":1}`:             ".x: is not known",
		`{"name":"a","status":"TESTED"}`: ".status: is output only",
		`{"name":"a","disks":[{"initializeParams":{"diskSizeGb":20}}]}`: "is no string",
		`{"name":"a","scheduling":{"provisioningModel":"CHEAP"}}`:       "is none of",
		`{"name":"a","tags":{"items":["-"]}}`:                           "does not match",
		`{"name":"a","labels":{"a":1}}`:                                 "is no string",
		`{"name":"a","canIpForward":"true"}`:                            "is no boolean",
	} {
		err := insert.CheckRequest([]byte(body))
		if want == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, want, body)
		}
	}
	get, _, err := d.Find(http.MethodGet, "/compute/v1/projects/p/zones/z/instances/a")
	require.NoError(t, err)
	require.NoError(t, get.CheckResponse([]byte(`{"status":"RUNNING","id":"1"}`)))
	assert.ErrorContains(t, get.CheckResponse([]byte(`{"status":"UP"}`)), "is none of")
	assert.ErrorContains(t, get.CheckResponse([]byte(`{"id":"x"}`)), "is no uint64")

	list, _, err := d.Find(http.MethodGet, "/compute/v1/projects/p/zones/z/instances")
	require.NoError(t, err)
	assert.ErrorContains(t, list.CheckQuery(url.Values{"maxResults": {"-1"}}), "is no uint32")
}

// TestMethodsOfResources: methods whose paths have one variable for a whole resource.
func TestMethodsOfResources(t *testing.T) {
	d := Load(t, Secrets)
	for request, want := range map[string]string{
		"POST /v1/projects/p/secrets":                         "secretmanager.projects.secrets.create",
		"GET /v1/projects/p/secrets":                          "secretmanager.projects.secrets.list",
		"DELETE /v1/projects/p/secrets/a":                     "secretmanager.projects.secrets.delete",
		"POST /v1/projects/p/secrets/a:addVersion":            "secretmanager.projects.secrets.addVersion",
		"GET /v1/projects/p/secrets/a/versions/latest:access": "secretmanager.projects.secrets.versions.access",
		"POST /v1/projects/p/secrets/a/versions/1:destroy":    "secretmanager.projects.secrets.versions.destroy",
		"GET /v1/projects/p/locations/l/secrets/a":            "secretmanager.projects.locations.secrets.get",
		"GET /v1/projects/p/secrets/a/versions/1:fetch":       "",
		"DELETE /v1/projects/p/secrets/a:addVersion":          "",
		"GET /v2/projects/p/secrets":                          "",
		"GET /v1/projects/p/q/secrets":                        "",
	} {
		verb, path, _ := strings.Cut(request, " ")
		m, _, err := d.Find(verb, path)
		if want == "" {
			assert.ErrorContains(t, err, "no method is", request)
		} else if assert.NoError(t, err, request) {
			assert.Equal(t, want, m.ID, request)
		}
	}
	add, _, err := d.Find(http.MethodPost, "/v1/projects/p/secrets/a:addVersion")
	require.NoError(t, err)
	require.NoError(t, add.CheckRequest([]byte(`{"payload": {"data": "YQ==", "dataCrc32c": "1"}}`)))
	assert.ErrorContains(t, add.CheckRequest([]byte(`{"payload": {"data": "YQ==", "dataCrc32c": 1}}`)), "is no string")
	create, _, err := d.Find(http.MethodPost, "/v1/projects/p/secrets")
	require.NoError(t, err)
	assert.ErrorContains(t, create.CheckRequest([]byte(`{"name": "a"}`)), ".name: is output only")
	assert.ErrorContains(t, create.CheckQuery(url.Values{"secretID": {"a"}}), "has no parameter secretID")
}

func TestMask(t *testing.T) {
	body := []byte(`{"kind":"k","next":"n","items":[{"a":1,"b":{"c":2,"d":3}},{"e":4}]}`)
	masked, err := Mask("kind,items(a,b(d))", body)
	require.NoError(t, err)
	assert.JSONEq(t, `{"kind":"k","items":[{"a":1,"b":{"d":3}},{}]}`, string(masked))
	for _, wrong := range []string{"", "a,", "a(b", "a)b", "a(b)c", "(a)"} {
		_, err := Mask(wrong, body)
		assert.Error(t, err, wrong)
	}
}
