// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"
)

// NewTemplate returns an empty template for userdata, arguments and files. Its functions make a
// value part of a text in which the value alone could be code, such as a shell script
// (docs/server-reference.md#functions). They have no effect outside the template, and read
// nothing.
func NewTemplate(name string) *template.Template {
	return template.New(name).Funcs(template.FuncMap{
		"shellQuote": shellQuote,
		"toJSON":     toJSON,
		"toYAML":     toYAML,
		"b64enc":     func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
		"indent":     indent,
	})
}

// shellQuote returns text as one word of a POSIX shell
// (https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_02_02). A
// shell has no word with a NUL.
func shellQuote(text string) (string, error) {
	if at := strings.IndexByte(text, 0); at >= 0 {
		return "", fmt.Errorf("byte %d is NUL, which no word of a shell can have", at)
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'", nil
}

// toJSON returns value as JSON in a single line.
func toJSON(value any) (string, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	// The text is no HTML.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "", err
	}
	return strings.TrimSuffix(buffer.String(), "\n"), nil
}

// toYAML returns value as YAML without a line end at the end. A text in a YAML document is
// toJSON, which is YAML too and has no lines that depend on the indentation.
func toYAML(value any) (string, error) {
	text, err := yaml.Marshal(value)
	return strings.TrimSuffix(string(text), "\n"), err
}

// indent returns text with spaces before each of its lines that is not empty.
func indent(spaces int, text string) (string, error) {
	if spaces < 0 || spaces > 100 {
		return "", fmt.Errorf("an indentation of %d: must be from 0 to 100", spaces)
	}
	prefix := strings.Repeat(" ", spaces)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = prefix + line
		}
	}
	return strings.Join(lines, "\n"), nil
}
