// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"text/template"
)

// MaxUserdata is how long userdata may be, in bytes: much more than any provider
// accepts. It limits what is fetched from a URL and what is decoded: a small gzip
// file can expand to a large one.
const MaxUserdata = 1 << 20

// userdataName is the name of the template in errors of text/template.
const userdataName = "userdata"

// Template returns the template in source, which is Inline or the content of URL.
// The error says what source must be, "must be base64: …", and shows no part of
// it.
func (u Userdata) Template(source []byte) (*template.Template, error) {
	text, err := u.decode(source)
	if err != nil {
		return nil, err
	}
	parsed, err := template.New(userdataName).Parse(string(text))
	if err != nil {
		// The error quotes the text. Its line is enough to find the mistake.
		var line int
		if _, scanErr := fmt.Sscanf(err.Error(), "template: "+userdataName+":%d:", &line); scanErr != nil {
			return nil, errors.New("must be a Go template")
		}
		return nil, fmt.Errorf("must be a Go template: mistake in line %d", line)
	}
	return parsed, nil
}

func (u Userdata) decode(source []byte) ([]byte, error) {
	var reader io.Reader = bytes.NewReader(source)
	switch u.Encoding {
	case "", EncodingPlain, EncodingGzip:
	case EncodingBase64, EncodingGzipBase64:
		decoded, err := base64.StdEncoding.AppendDecode(nil, source)
		if err != nil {
			return nil, fmt.Errorf("must be base64: %w", err)
		}
		reader = bytes.NewReader(decoded)
	default:
		return nil, fmt.Errorf("must not have the unknown encoding %q", u.Encoding)
	}
	if u.Encoding == EncodingGzip || u.Encoding == EncodingGzipBase64 {
		unpacking, err := gzip.NewReader(reader)
		if err != nil {
			return nil, fmt.Errorf("must be gzip: %w", err)
		}
		reader = unpacking
	}
	decoded, err := io.ReadAll(io.LimitReader(reader, MaxUserdata+1))
	if err != nil {
		return nil, fmt.Errorf("must be gzip: %w", err)
	}
	if len(decoded) > MaxUserdata {
		return nil, fmt.Errorf("must have at most %d bytes when decoded", MaxUserdata)
	}
	return decoded, nil
}
