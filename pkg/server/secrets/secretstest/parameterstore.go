// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// parameterStore responds as AWS Systems Manager does for parameters.
type parameterStore struct {
	t          testing.TB
	parameters map[string]string
}

// StartParameterStore starts a server that responds as AWS Parameter Store does, for the
// operations that the product needs. It stops with the test.
func StartParameterStore(t testing.TB) (url string, faults *Faults) {
	t.Helper()
	s := &parameterStore{t: t, parameters: map[string]string{}}
	return start(t, &awsService{target: "AmazonSSM", name: "ssm", operations: map[string]func([]byte) (any, error){
		"GetParameter": s.get, "PutParameter": s.put, "DeleteParameter": s.remove, "GetParametersByPath": s.list,
	}})
}

const (
	parameterNotFound = "ParameterNotFound"
	validation        = "ValidationException"
)

var parameterNames = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+){1,15}$`)

func (s *parameterStore) get(body []byte) (any, error) {
	var request struct {
		Name           string
		WithDecryption bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	value, found := s.parameters[request.Name]
	if !found {
		return nil, rejected(parameterNotFound, "")
	}
	if !request.WithDecryption {
		value = "AQICAHencrypted"
	}
	return map[string]any{"Parameter": map[string]any{"Name": request.Name, "Type": "SecureString", "Value": value}}, nil
}

func (s *parameterStore) put(body []byte) (any, error) {
	var request struct {
		Name, Value, Type, Tier string
		Overwrite               bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	switch {
	case !parameterNames.MatchString(request.Name) || strings.HasPrefix(request.Name, "/aws") || strings.HasPrefix(request.Name, "/ssm"):
		return nil, rejected(validation, "Parameter name: %s", request.Name)
	case request.Type != "SecureString" || request.Tier != "Standard":
		return nil, rejected(validation, "the test expects a SecureString of tier Standard")
	case request.Value == "" || len(request.Value) > 4096 || !utf8.ValidString(request.Value):
		return nil, rejected(validation, "Standard tier parameters support a maximum parameter value of 4096 characters.")
	}
	if _, exists := s.parameters[request.Name]; exists && !request.Overwrite {
		return nil, rejected("ParameterAlreadyExists", "The parameter already exists.")
	}
	s.parameters[request.Name] = request.Value
	return map[string]any{"Version": 1, "Tier": "Standard"}, nil
}

func (s *parameterStore) remove(body []byte) (any, error) {
	var request struct{ Name string }
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	if _, found := s.parameters[request.Name]; !found {
		return nil, rejected(parameterNotFound, "")
	}
	delete(s.parameters, request.Name)
	return map[string]any{}, nil
}

func (s *parameterStore) list(body []byte) (any, error) {
	var request struct {
		Path, NextToken string
		Recursive       bool
		WithDecryption  bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	if !parameterNames.MatchString(request.Path) {
		return nil, rejected(validation, "The parameter path must be prefixed with \"/\" and not end with it: %s", request.Path)
	}
	if request.WithDecryption {
		s.t.Error("a list decrypts the values")
	}
	var list []map[string]any
	for _, name := range slices.Sorted(maps.Keys(s.parameters)) {
		if below, isBelow := strings.CutPrefix(name, request.Path+"/"); isBelow && (request.Recursive || !strings.Contains(below, "/")) {
			list = append(list, map[string]any{"Name": name, "Type": "SecureString", "Value": "AQICAHencrypted"})
		}
	}
	begin, end, next := page(s.t, request.NextToken, len(list), 10)
	response := map[string]any{"Parameters": list[begin:end]}
	if next != "" {
		response["NextToken"] = next
	}
	return response, nil
}
