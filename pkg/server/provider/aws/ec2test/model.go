// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// ModelEnv is the path of a model that is used instead of one that LoadModel finds.
const ModelEnv = "NSTANCE_TEST_EC2_MODEL"

// Model is the description of a service from which the AWS CLI and the SDK for Python are
// generated: the parameters of each call, and their allowed values
// (https://github.com/boto/botocore).
type Model struct {
	// Metadata has the protocol, ec2 or query, which have different lists.
	Metadata   struct{ Protocol string }
	Operations map[string]struct {
		Input struct{ Shape string }
	}
	Shapes map[string]*shape
}

// shape is the type of a parameter.
type shape struct {
	Type     string
	Members  map[string]*member
	Member   *member
	Required []string
	Enum     []string
	Min, Max *float64
	Pattern  string
}

type member struct{ Shape, LocationName, QueryName string }

// load reads the model of EC2 once for all tests of a process.
var load = sync.OnceValues(func() (*Model, error) { return ReadModel("ec2/2016-11-15", os.Getenv(ModelEnv)) })

// ReadModel reads a model that a package of botocore has, such as "elbv2/2015-12-01", or the
// file at a path if that is not empty. It returns nil if the model is not on this machine.
func ReadModel(name, path string) (*Model, error) {
	modelPath := "botocore/data/" + name + "/service-2.json.gz"
	var paths []string
	if path != "" {
		paths = append(paths, path)
	} else {
		// Without a home or the AWS CLI, there is no model in its folder.
		home, _ := os.UserHomeDir()
		aws, _ := exec.LookPath("aws")
		for _, pattern := range []string{
			// The virtual environment of make test-moto.
			filepath.Dir(filepath.Dir(aws)) + "/lib/python3*/site-packages/",
			home + "/.pyenv/versions/*/lib/python3*/site-packages/", home + "/.local/lib/python3*/site-packages/",
			"/usr/lib/python3/dist-packages/", "/usr/local/lib/python3*/*-packages/",
		} {
			found, err := filepath.Glob(pattern + modelPath)
			if err != nil {
				return nil, err
			}
			paths = append(paths, found...)
		}
	}
	if len(paths) == 0 {
		return nil, nil
	}
	file, err := os.Open(paths[0])
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	model := &Model{}
	return model, json.NewDecoder(data).Decode(model)
}

// LoadModel returns the model, nil if it is not on this machine.
func LoadModel(t testing.TB) *Model {
	t.Helper()
	model, err := load()
	if err != nil {
		t.Errorf("read the model of EC2: %v", err)
	}
	return model
}

// Check returns an error that names the mistakes in the parameters of a call.
func (m *Model) Check(action string, form url.Values) error {
	operation, known := m.Operations[action]
	if !known {
		return refuse("InvalidAction", "the model has no action %s", action)
	}
	root := &node{members: map[string]*node{}}
	for name, values := range form {
		if name != "Action" && name != "Version" {
			root.add(strings.Split(name, "."), values[0])
		}
	}
	if problem := m.check(operation.Input.Shape, action, root); problem != "" {
		return refuse("InvalidParameter", "%s", problem)
	}
	return nil
}

// node is a parameter: a text, or one with members.
type node struct {
	text    string
	members map[string]*node
}

func (n *node) add(path []string, text string) {
	if len(path) == 0 {
		n.text = text
		return
	}
	child, found := n.members[path[0]]
	if !found {
		child = &node{members: map[string]*node{}}
		n.members[path[0]] = child
	}
	child.add(path[1:], text)
}

// nameOf returns the name of a member in calls.
func nameOf(name string, m *member) string {
	switch {
	case m.QueryName != "":
		return m.QueryName
	case m.LocationName != "":
		return strings.ToUpper(m.LocationName[:1]) + m.LocationName[1:]
	}
	return name
}

func (m *Model) check(name, path string, n *node) string {
	s := m.Shapes[name]
	switch s.Type {
	case "structure":
		return m.checkStructure(s, path, n)
	case "list":
		if element := n.members["member"]; m.Metadata.Protocol == "query" && element != nil {
			if len(n.members) > 1 || n.text != "" {
				return path + " has more than its elements"
			}
			n, path = element, path+".member"
		} else if m.Metadata.Protocol == "query" {
			return path + " has no member"
		}
		for index := range n.members {
			if number, err := strconv.Atoi(index); err != nil || number < 1 || number > len(n.members) {
				return path + " has no element " + index
			}
			if problem := m.check(s.Member.Shape, path+"."+index, n.members[index]); problem != "" {
				return problem
			}
		}
		if n.text != "" {
			return path + " is a list"
		}
		return ""
	}
	if len(n.members) > 0 {
		return path + " has no members"
	}
	return s.checkText(path, n.text)
}

func (m *Model) checkStructure(s *shape, path string, n *node) string {
	byName := map[string]*member{}
	for name, expected := range s.Members {
		byName[nameOf(name, expected)] = expected
		if slices.Contains(s.Required, name) && n.members[nameOf(name, expected)] == nil {
			return path + " lacks " + nameOf(name, expected)
		}
	}
	for name, child := range n.members {
		known, found := byName[name]
		if !found {
			return path + " has no parameter " + name
		}
		if problem := m.check(known.Shape, path+"."+name, child); problem != "" {
			return problem
		}
	}
	return ""
}

// checkText returns the mistake in a text, or an empty text.
func (s *shape) checkText(path, text string) string {
	size := float64(len(text))
	switch s.Type {
	case "integer", "long", "float", "double":
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Sprintf("%s: %q is no number", path, text)
		}
		size = number
	case "boolean":
		if text != "true" && text != "false" {
			return fmt.Sprintf("%s: %q is neither true nor false", path, text)
		}
	}
	switch {
	case s.Min != nil && size < *s.Min, s.Max != nil && size > *s.Max:
		return fmt.Sprintf("%s: %q is too short, long, small or large", path, text)
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, text):
		return fmt.Sprintf("%s: %q is none of %v", path, text, s.Enum)
	case s.Pattern != "":
		if pattern, err := regexp.Compile(s.Pattern); err == nil && !pattern.MatchString(text) {
			return fmt.Sprintf("%s: %q does not match %s", path, text, s.Pattern)
		}
	}
	return ""
}
