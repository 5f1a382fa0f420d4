// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxUserdata is the maximum size of userdata in bytes, much more than any provider accepts.
// It limits downloads and decoding: a small gzip file can expand to a large one.
const MaxUserdata = 1 << 20

// userdataName is the name of the template in errors of text/template.
const userdataName = "userdata"

// Template returns the template in source, which is Inline or the content of URL. The error
// says which encoding or syntax source must have, "must be base64: …", and shows no part of
// it.
func (u Userdata) Template(source []byte) (*template.Template, error) {
	text, err := u.decode(source)
	if err != nil {
		return nil, err
	}
	parsed, err := NewTemplate(userdataName).Parse(string(text))
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

// Check returns an error unless content has the hash that the configuration names.
func (u Userdata) Check(content []byte) error {
	if u.SHA256 == "" {
		return nil
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != u.SHA256 {
		return fmt.Errorf("its SHA-256 is %x, and userdata.sha256 is %s", sum, u.SHA256)
	}
	return nil
}

// Unprotected reports whether others in the network can change the content of the URL on its way.
func (u Userdata) Unprotected() bool {
	return u.SHA256 == "" && strings.HasPrefix(strings.ToLower(u.URL), "http://")
}

// Warnings returns what is allowed, but dangerous.
func (c *Config) Warnings() []string {
	var warnings []string
	warn := func(path string, u Userdata) {
		if u.Unprotected() {
			warnings = append(warnings, path+".userdata.url begins with http:// and has no sha256 beside it: "+
				"a host on the way can change what runs on every new machine; use https:// or a sha256")
		}
	}
	warn("defaults", c.Defaults.Userdata)
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		warn("templates."+name, c.Templates[name].Userdata)
	}
	return warnings
}

// encodings are all supported encodings.
var encodings = []string{EncodingPlain, EncodingBase64, EncodingGzip, EncodingGzipBase64}

// hash matches a SHA-256.
var hash = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (u Userdata) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if u.URL != "" {
		// The URL may have a password or a signature in it.
		if parsed, err := url.Parse(u.URL); err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			errs = append(errs, field.Invalid(path.Child("url"), field.OmitValueType{}, "must be a URL that begins with http:// or https://"))
		}
	}
	switch {
	case u.SHA256 == "":
	case u.URL == "":
		errs = append(errs, field.Forbidden(path.Child("sha256"), "only the content of a url has a hash"))
	case !hash.MatchString(u.SHA256):
		errs = append(errs, field.Invalid(path.Child("sha256"), u.SHA256, "must be 64 lower case hexadecimal digits, as sha256sum prints them"))
	}
	switch {
	case u.Encoding != "" && !slices.Contains(encodings, u.Encoding):
		errs = append(errs, field.NotSupported(path.Child("encoding"), u.Encoding, encodings))
	case u.Inline == "":
		// The content of a URL is checked when an instance needs it.
	case u.Encoding == EncodingGzip:
		errs = append(errs, field.Invalid(path.Child("encoding"), u.Encoding, "must be that of a url only: a string cannot contain gzip, use "+EncodingGzipBase64))
	default:
		// Userdata is long and may be confidential: the error has only its path.
		if _, err := u.Template([]byte(u.Inline)); err != nil {
			errs = append(errs, field.Invalid(path, field.OmitValueType{}, err.Error()))
		}
	}
	return errs
}

// validateArgs checks that every string of the arguments can be rendered, and the
// rules of the provider.
func (c *Config) validateArgs(path *field.Path, args map[string]any) field.ErrorList {
	errs := validateTemplates(path, args)
	if options := c.Shard.Infra.Options; options != nil {
		errs = append(errs, options.ValidateArgs(path, args)...)
	}
	return errs
}

// validateTemplates checks every string in value, which has the types of
// encoding/json.
func validateTemplates(path *field.Path, value any) field.ErrorList {
	var errs field.ErrorList
	switch value := value.(type) {
	case string:
		return validateTemplate(path, value)
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			errs = append(errs, validateTemplates(path.Child(name), value[name])...)
		}
	case []any:
		for i := range value {
			errs = append(errs, validateTemplates(path.Index(i), value[i])...)
		}
	}
	return errs
}

// validateTemplate reports a text that is not a Go template.
func validateTemplate(path *field.Path, text string) field.ErrorList {
	if _, err := NewTemplate("line").Parse(text); err != nil {
		problem := strings.TrimPrefix(err.Error(), "template: ")
		return field.ErrorList{field.Invalid(path, text, "must be a Go template: "+problem)}
	}
	return nil
}

// MergeArgs merges layers of arguments; later layers win. Objects are merged
// member by member; everything else, arrays too, is replaced. The result shares no
// object with the layers, and is nil when it has no member.
func MergeArgs(layers ...map[string]any) map[string]any {
	merged := map[string]any{}
	for _, layer := range layers {
		mergeInto(merged, layer)
	}
	if len(merged) == 0 {
		return nil
	}
	return merged
}

func mergeInto(merged, layer map[string]any) {
	for name, value := range layer {
		object, isObject := value.(map[string]any)
		if !isObject {
			merged[name] = value
			continue
		}
		below, isObject := merged[name].(map[string]any)
		if !isObject {
			below = map[string]any{}
			merged[name] = below
		}
		mergeInto(below, object)
	}
}
