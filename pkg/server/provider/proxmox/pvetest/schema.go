// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// method is one of the API, with the parameters that are allowed here: some of those that
// its schema has.
type method struct {
	verb, path string
	parameters map[string]parameter
	// check returns the privileges that the call needs, by path.
	check  func(*request) map[string]string
	handle func(*Server, *request) (any, error)
}

// parameter is what a schema says about a parameter.
type parameter struct {
	kind     string
	required bool
	pattern  *regexp.Regexp
	minimum  int
	maximum  int
	longest  int
}

// The kinds of parameters.
const (
	aString  = "string"
	aBoolean = "boolean"
	aNumber  = "integer"
)

func text(pattern string) parameter {
	return parameter{kind: aString, pattern: regexp.MustCompile("^(?:" + pattern + ")$")}
}

func number(minimum, maximum int) parameter {
	return parameter{kind: aNumber, minimum: minimum, maximum: maximum}
}

func (p parameter) require() parameter {
	p.required = true
	return p
}

var (
	boolean     = parameter{kind: aBoolean}
	vmID        = number(100, 999_999_999)
	dnsName     = text(`[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*`)
	storageID   = text(`[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]`)
	description = parameter{kind: aString, longest: 8192}
)

// variables are those in paths.
var pathVariables = map[string]parameter{
	"node":    text(`[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?`),
	"vmid":    vmID,
	"storage": storageID,
	"volume":  text(`.+`),
	"upid":    text(`UPID:[^:]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:[^:\s]+:[^:\s]*:[^:\s]+:`),
}

// find returns the method of a call and the variables in its path.
func find(verb, path string) (*method, map[string]string, error) {
	parts := strings.Split(path, "/")
	for _, m := range methods {
		names := strings.Split(m.path, "/")
		if m.verb != verb || len(names) != len(parts) {
			continue
		}
		variables, matches := map[string]string{}, true
		for n, name := range names {
			value, err := url.PathUnescape(parts[n])
			if variable, is := strings.CutPrefix(name, "{"); is {
				variables[strings.TrimSuffix(variable, "}")] = value
				matches = matches && err == nil
			} else {
				matches = matches && name == value
			}
		}
		if matches {
			return m, variables, nil
		}
	}
	return nil, nil, &failure{status: http.StatusNotImplemented, message: "Method '" + verb + " /" + path + "' not implemented"}
}

// parse reads the parameters of a call and refuses those that the schema does not allow.
func parse(r *http.Request, m *method, variables map[string]string) (*request, error) {
	parsed := &request{Request: r, path: variables, form: map[string]string{}}
	problems := map[string]string{}
	for name, value := range variables {
		if problem := pathVariables[name].validate(value); problem != "" {
			problems[name] = problem
		}
	}
	values, err := parsed.read()
	if err != nil {
		return nil, &failure{status: http.StatusBadRequest, message: err.Error()}
	}
	for name, all := range values {
		schema, known := m.parameters[name]
		problem := "property is not defined in schema and the schema does not allow additional properties"
		switch {
		case len(all) != 1:
			problem = "must be one value"
		case known:
			problem = schema.validate(all[0])
		}
		if problem != "" {
			problems[name] = problem
		}
		parsed.form[name] = all[0]
	}
	for name, schema := range m.parameters {
		if _, has := values[name]; schema.required && !has {
			problems[name] = "property is missing and it is not optional"
		}
	}
	if len(problems) > 0 {
		return nil, &failure{status: http.StatusBadRequest, message: "Parameter verification failed.", parameters: problems}
	}
	return parsed, nil
}

// read returns the parameters, which are in the query of a call without a body, or in a
// form.
func (r *request) read() (url.Values, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodDelete {
		return url.ParseQuery(r.URL.RawQuery)
	}
	kind, options, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	if kind == "multipart/form-data" {
		return r.readParts(multipart.NewReader(r.Body, options["boundary"]))
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return url.ParseQuery(string(body))
}

// readParts reads an upload, whose file must be the last part.
func (r *request) readParts(parts *multipart.Reader) (url.Values, error) {
	values := url.Values{}
	for {
		part, err := parts.NextPart()
		if err == io.EOF { //nolint:errorlint // the reader returns it as it is
			return values, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, err
		}
		switch {
		case r.file != nil:
			return nil, failed("the file is not the last part")
		case part.FileName() != "":
			r.file, r.fileName = content, part.FileName()
			values.Add(part.FormName(), part.FileName())
		default:
			values.Add(part.FormName(), string(content))
		}
	}
}

// validate returns what is wrong with a value.
func (p parameter) validate(value string) string {
	switch p.kind {
	case aBoolean:
		if !slices.Contains([]string{"0", "1", "yes", "no", "on", "off", "true", "false"}, value) {
			return "type check ('boolean') failed - got '" + value + "'"
		}
	case aNumber:
		n, err := strconv.Atoi(value)
		switch {
		case err != nil:
			return "type check ('integer') failed - got '" + value + "'"
		case n < p.minimum:
			return "value must have a minimum value of " + strconv.Itoa(p.minimum)
		case n > p.maximum:
			return "value must have a maximum value of " + strconv.Itoa(p.maximum)
		}
	default:
		if p.pattern != nil && !p.pattern.MatchString(value) {
			return "value does not match the regex pattern"
		}
		if p.longest > 0 && len(value) > p.longest {
			return "value may only be " + strconv.Itoa(p.longest) + " characters long"
		}
	}
	return ""
}

// isTrue reports whether a boolean parameter is true.
func (r *request) isTrue(name string) bool {
	return slices.Contains([]string{"1", "yes", "on", "true"}, r.form[name])
}

// vmid returns the VMID in the path.
func (r *request) vmid() int {
	n, _ := strconv.Atoi(r.path["vmid"]) // was validated
	return n
}
