// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package discoverytest checks requests and responses with the discovery documents that
// Google publishes of its APIs: paths, parameters, bodies, types, enums, formats.
package discoverytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/source"
)

// The documents that are used.
const (
	Compute = "compute/v1/compute-api.json"
	Storage = "storage/v1/storage-api.json"
	Secrets = "secretmanager/v1/secretmanager-api.json"
)

// Document describes one API.
type Document struct {
	ServicePath string               `json:"servicePath"`
	Parameters  map[string]*Schema   `json:"parameters"`
	Schemas     map[string]*Schema   `json:"schemas"`
	Resources   map[string]*resource `json:"resources"`

	methods []*Method
}

type resource struct {
	Methods   map[string]*Method   `json:"methods"`
	Resources map[string]*resource `json:"resources"`
}

// Method is one method of an API.
type Method struct {
	ID         string             `json:"id"`
	HTTPMethod string             `json:"httpMethod"`
	Path       string             `json:"path"`
	Parameters map[string]*Schema `json:"parameters"`
	Request    *Schema            `json:"request"`
	Response   *Schema            `json:"response"`

	document *Document
}

// Schema describes a value.
type Schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Pattern              string             `json:"pattern"`
	Enum                 []string           `json:"enum"`
	Minimum              string             `json:"minimum"`
	Maximum              string             `json:"maximum"`
	Location             string             `json:"location"`
	Required             bool               `json:"required"`
	Repeated             bool               `json:"repeated"`
	ReadOnly             bool               `json:"readOnly"`
	Items                *Schema            `json:"items"`
	Properties           map[string]*Schema `json:"properties"`
	AdditionalProperties *Schema            `json:"additionalProperties"`
	Annotations          struct {
		Required []string `json:"required"`
	} `json:"annotations"`
}

// Load reads a document from the module that has it.
func Load(t testing.TB, name string) *Document {
	t.Helper()
	dir, err := moduleDir()
	require.NoError(t, err)
	loading.Lock()
	defer loading.Unlock()
	if d, loaded := documents[name]; loaded {
		return d
	}
	data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	require.NoError(t, err)
	d := new(Document)
	require.NoError(t, json.Unmarshal(data, d))
	for _, nested := range d.Resources {
		d.collect(nested)
	}
	documents[name] = d
	return d
}

var (
	loading   sync.Mutex
	documents = map[string]*Document{}
)

func (d *Document) collect(r *resource) {
	for _, method := range r.Methods {
		method.document = d
		d.methods = append(d.methods, method)
	}
	for _, nested := range r.Resources {
		d.collect(nested)
	}
}

// moduleDir returns the folder of the Go module with the documents. The documents have their
// own module here, so that the server does not require its dependencies.
var moduleDir = sync.OnceValues(func() (string, error) {
	root, err := source.Root("hack/discovery/go.*")
	if err != nil {
		return "", err
	}
	text, err := source.Go(filepath.Join(root, "hack", "discovery"), "mod", "download", "-json", "google.golang.org/api")
	if err != nil {
		return "", fmt.Errorf("find the discovery documents: %w", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(text), &module); err != nil {
		return "", err
	}
	return module.Dir, nil
})

// Find returns the method of a path below the root of the API and the variables in it.
func (d *Document) Find(httpMethod, escapedPath string) (*Method, map[string]string, error) {
	rest, found := strings.CutPrefix(escapedPath, "/"+d.ServicePath)
	if !found {
		return nil, nil, fmt.Errorf("%s is not below /%s", escapedPath, d.ServicePath)
	}
	parts := strings.Split(rest, "/")
	for _, m := range d.methods {
		if m.HTTPMethod == httpMethod && strings.Contains(m.Path, "{+") {
			if variables, matches := m.matchResource(rest); matches {
				return m, variables, nil
			}
			continue
		}
		names := strings.Split(m.Path, "/")
		if m.HTTPMethod != httpMethod || len(names) != len(parts) {
			continue
		}
		if variables, matches := match(names, parts); matches {
			return m, variables, m.checkPath(variables)
		}
	}
	return nil, nil, fmt.Errorf("no method is %s %s", httpMethod, escapedPath)
}

// matchResource returns the variable of a path such as v1/{+name}:access. Its value has slashes, and
// its pattern distinguishes the methods of one path.
func (m *Method) matchResource(escaped string) (variables map[string]string, matches bool) {
	before, rest, _ := strings.Cut(m.Path, "{+")
	name, after, _ := strings.Cut(rest, "}")
	value, hasPrefix := strings.CutPrefix(escaped, before)
	value, hasSuffix := strings.CutSuffix(value, after)
	value, err := url.PathUnescape(value)
	schema := m.Parameters[name]
	// A colon begins the verb of another method.
	if err != nil || !hasPrefix || !hasSuffix || strings.Contains(value, ":") || schema == nil || schema.checkText(value) != "" {
		return nil, false
	}
	return map[string]string{name: value}, true
}

func match(names, parts []string) (variables map[string]string, matches bool) {
	variables = map[string]string{}
	for n, name := range names {
		value, err := url.PathUnescape(parts[n])
		switch variable, is := strings.CutPrefix(name, "{"); {
		case err != nil:
			return nil, false
		case is:
			variables[strings.TrimSuffix(variable, "}")] = value
		case name != value:
			return nil, false
		}
	}
	return variables, true
}

func (m *Method) checkPath(variables map[string]string) error {
	for name, value := range variables {
		schema := m.Parameters[name]
		if schema == nil || schema.Location != "path" {
			return fmt.Errorf("%s has no parameter %s in its path", m.ID, name)
		}
		if value == "" {
			return fmt.Errorf("%s: parameter %s is empty", m.ID, name)
		}
		if problem := schema.checkText(value); problem != "" {
			return fmt.Errorf("%s: parameter %s: %s", m.ID, name, problem)
		}
	}
	return nil
}

// CheckQuery returns an error that names the mistakes in the query of a request.
func (m *Method) CheckQuery(query url.Values) error {
	for name, values := range query {
		schema := m.Parameters[name]
		if schema == nil {
			schema = m.document.Parameters[name]
		}
		switch {
		case schema == nil || schema.Location != "query":
			return fmt.Errorf("%s has no parameter %s", m.ID, name)
		case len(values) != 1 && !schema.Repeated:
			return fmt.Errorf("%s: parameter %s has %d values", m.ID, name, len(values))
		}
		for _, value := range values {
			if problem := schema.checkText(value); problem != "" {
				return fmt.Errorf("%s: parameter %s: %s", m.ID, name, problem)
			}
		}
	}
	for name, schema := range m.Parameters {
		if schema.Required && schema.Location == "query" && len(query[name]) == 0 {
			return fmt.Errorf("%s needs the parameter %s", m.ID, name)
		}
	}
	return nil
}

// CheckBody returns an error that names the mistakes in the body of a request.
func (m *Method) CheckBody(r *http.Request, body []byte) error {
	if m.Request == nil {
		if len(body) > 0 {
			return fmt.Errorf("%s has no body", m.ID)
		}
		return nil
	}
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		return fmt.Errorf("%s has a body of type %q", m.ID, kind)
	}
	return m.CheckRequest(body)
}

// CheckRequest returns an error that names the mistakes in the JSON of a request.
func (m *Method) CheckRequest(body []byte) error {
	return m.check(m.Request, body, &checker{document: m.document, method: m.ID, request: true})
}

// CheckResponse returns an error that names the mistakes in the body of a response.
func (m *Method) CheckResponse(body []byte) error {
	if m.Response == nil {
		if len(body) > 0 {
			return fmt.Errorf("%s has no response", m.ID)
		}
		return nil
	}
	return m.check(m.Response, body, &checker{document: m.document, method: m.ID})
}

func (m *Method) check(schema *Schema, body []byte, c *checker) error {
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("%s: %w", m.ID, err)
	}
	c.check("", schema, value)
	if len(c.problems) > 0 {
		slices.Sort(c.problems)
		return fmt.Errorf("%s: %s", m.ID, strings.Join(c.problems, "; "))
	}
	return nil
}
