// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// encodings are all that are supported.
var encodings = []string{EncodingPlain, EncodingBase64, EncodingGzip, EncodingGzipBase64}

func (u Userdata) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if u.URL != "" {
		// The URL may have a password or a signature in it.
		if parsed, err := url.Parse(u.URL); err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			errs = append(errs, field.Invalid(path.Child("url"), field.OmitValueType{}, "must be a URL that begins with http:// or https://"))
		}
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

// validateTemplate reports a text that is no Go template.
func validateTemplate(path *field.Path, text string) field.ErrorList {
	if _, err := template.New("line").Parse(text); err != nil {
		problem := strings.TrimPrefix(err.Error(), "template: ")
		return field.ErrorList{field.Invalid(path, text, "must be a Go template: "+problem)}
	}
	return nil
}
