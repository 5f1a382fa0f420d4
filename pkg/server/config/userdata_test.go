// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func inBase64(data []byte) []byte {
	return base64.StdEncoding.AppendEncode(nil, data)
}

func inGzip(t *testing.T, data []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err := writer.Write(data)
	require.NoError(t, errors.Join(err, writer.Close()))
	return packed.Bytes()
}

// sources returns text in every encoding, by encoding.
func sources(t *testing.T, text []byte) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"":                 text,
		EncodingPlain:      text,
		EncodingBase64:     inBase64(text),
		EncodingGzip:       inGzip(t, text),
		EncodingGzipBase64: inBase64(inGzip(t, text)),
	}
}

func TestTemplateIsDecoded(t *testing.T) {
	text := []byte("#!/bin/sh\necho {{.Nonce}} \xff")
	for encoding, source := range sources(t, text) {
		template, err := Userdata{Encoding: encoding}.Template(source)
		if err != nil {
			t.Fatalf("%q: %v", encoding, err)
		}
		if got := template.Root.String(); got != string(text) {
			t.Errorf("%q is decoded to %q, want %q", encoding, got, text)
		}
	}
}

// TestBase64MayHaveLines: commands write base64 in lines.
func TestBase64MayHaveLines(t *testing.T) {
	template, err := Userdata{Encoding: EncodingBase64}.Template([]byte("e3suTm9u\r\nY2V9fQ==\n"))
	if err != nil || template.Root.String() != "{{.Nonce}}" {
		t.Errorf("got error %v", err)
	}
}

func TestUserdataHasALimit(t *testing.T) {
	longest := bytes.Repeat([]byte("x"), 1<<20)
	for encoding, source := range sources(t, longest) {
		if _, err := (Userdata{Encoding: encoding}).Template(source); err != nil {
			t.Errorf("%q: 1 MiB gives %v", encoding, err)
		}
	}
	for encoding, source := range sources(t, append(longest, 'x')) {
		_, err := Userdata{Encoding: encoding}.Template(source)
		if err == nil || err.Error() != "must have at most 1048576 bytes when decoded" {
			t.Errorf("%q: more than 1 MiB gives %v", encoding, err)
		}
	}

	// The rest is not unpacked: otherwise the missing end would be an error.
	huge := inGzip(t, make([]byte, 1<<22))
	if len(huge) > 1<<13 {
		t.Fatalf("the gzip has %d bytes, which is not little", len(huge))
	}
	_, err := Userdata{Encoding: EncodingGzip}.Template(huge[:len(huge)-100])
	if err == nil || err.Error() != "must have at most 1048576 bytes when decoded" {
		t.Errorf("little gzip of 4 MiB gives %v", err)
	}
}

func TestTemplateRejects(t *testing.T) {
	packed := inGzip(t, []byte("secret"))
	changed := bytes.Clone(packed)
	changed[len(changed)-5] ^= 1
	tests := []struct{ name, encoding, source, want string }{
		{"plain text as base64", EncodingBase64, "secret {{.Nonce}}", "must be base64: illegal base64 data at input byte 6"},
		{"base64 without its end", EncodingBase64, "c2VjcmV0Cg=", "must be base64: illegal base64 data at input byte 11"},
		{"plain text as gzip", EncodingGzip, "secret {{.Nonce}}", "must be gzip: gzip: invalid header"},
		{"nothing as gzip", EncodingGzip, "", "must be gzip: EOF"},
		{"gzip without its end", EncodingGzip, string(packed[:len(packed)-9]), "must be gzip: unexpected EOF"},
		{"gzip that was changed", EncodingGzip, string(changed), "must be gzip: gzip: invalid checksum"},
		{"gzip without base64", EncodingGzipBase64, string(packed), "must be base64: illegal base64 data at input byte 0"},
		{"base64 without gzip", EncodingGzipBase64, string(inBase64([]byte("secret {{.Nonce}}"))), "must be gzip: gzip: invalid header"},
		{"no template", "", "\n{{secret}}", "must be a Go template: mistake in line 2"},
		{"no template in gzip", EncodingGzip, string(inGzip(t, []byte("\n\n{{`secret`.X}}"))), "must be a Go template: mistake in line 3"},
		{"template that is defined twice", "", "{{define `secret`}}a{{end}}\n{{define `secret`}}b{{end}}", "must be a Go template: mistake in line 2"},
		{"encoding", "zip", "secret", `must not have the unknown encoding "zip"`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Userdata{Encoding: tc.encoding}.Template([]byte(tc.source))
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestInlineUserdataStaysEncoded: its digest is computed from the text as written.
func TestInlineUserdataStaysEncoded(t *testing.T) {
	all := sources(t, []byte("{{.Nonce}}"))
	for _, encoding := range []string{EncodingBase64, EncodingGzipBase64} {
		want := Userdata{Inline: string(all[encoding]), Encoding: encoding}
		c := parsed(t, fmt.Sprintf(required, ``, fmt.Sprintf(`"defaults": {"userdata": {"inline": %q, "encoding": %q}}`, want.Inline, encoding)))
		if diff := cmp.Diff(want, c.Defaults.Userdata); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestGzipIsForURLs: a URL may have every encoding.
func TestGzipIsForURLs(t *testing.T) {
	for _, encoding := range encodings {
		parsed(t, fmt.Sprintf(required, ``, fmt.Sprintf(`"defaults": {"userdata": {"url": "https://example.com/", "encoding": %q}}`, encoding)))
	}
}

func TestMergeArgs(t *testing.T) {
	tests := []struct {
		name   string
		layers []string
		want   string
	}{
		{"no layer", nil, `null`},
		{"layers without members", []string{`{}`, `null`}, `null`},
		{"one layer", []string{`{"a": {"b": [1]}}`}, `{"a": {"b": [1]}}`},
		{"members are added", []string{`{"a": 1}`, `{"b": 2}`, `{"c": 3}`}, `{"a": 1, "b": 2, "c": 3}`},
		{"the last layer wins", []string{`{"a": 1}`, `{"a": 2}`, `{"a": "3"}`}, `{"a": "3"}`},
		{"objects are merged, however deep", []string{`{"a": {"b": {"c": 1, "d": 1}}}`, `{"a": {"b": {"d": 2}, "e": 2}}`}, `{"a": {"b": {"c": 1, "d": 2}, "e": 2}}`},
		{"arrays are replaced", []string{`{"a": [1, 2, {"b": 1}]}`, `{"a": [{"c": 1}]}`}, `{"a": [{"c": 1}]}`},
		{"an object is replaced by something else", []string{`{"a": {"b": 1}}`, `{"a": "x"}`}, `{"a": "x"}`},
		{"something else is replaced by an object", []string{`{"a": "x"}`, `{"a": {"b": 1}}`}, `{"a": {"b": 1}}`},
		{"null is a value", []string{`{"a": {"b": 1}, "c": 1}`, `{"a": null}`}, `{"a": null, "c": 1}`},
		{"an object without members is one", []string{`{"a": "x"}`, `{"a": {}}`}, `{"a": {}}`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var layers, unchanged []map[string]any
			for _, layer := range tc.layers {
				layers = append(layers, decode(t, layer))
				unchanged = append(unchanged, decode(t, layer))
			}
			got := MergeArgs(layers...)
			if diff := cmp.Diff(decode(t, tc.want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// A change of the result changes no layer.
			scribble(got)
			if diff := cmp.Diff(unchanged, layers); diff != "" {
				t.Errorf("the layers are changed (-want +got):\n%s", diff)
			}
		})
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var value map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	return value
}

// scribble changes every object in value that is not in an array.
func scribble(value map[string]any) {
	for _, member := range value {
		if object, ok := member.(map[string]any); ok {
			scribble(object)
		}
	}
	if value != nil {
		value["scribbled"] = true
	}
}
