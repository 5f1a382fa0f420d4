// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/storage"
)

// Kinds of files (docs/server-reference.md#files).
const (
	FileCertificate = "certificate"
	FileSecret      = "secret"
	FileStorage     = "storage"
	FileEnv         = "env"
	FileJSON        = "json"
	FileString      = "string"
)

var fileKinds = []string{FileCertificate, FileSecret, FileStorage, FileEnv, FileJSON, FileString}

// FileSource says how to make the content of a file. Fields of other kinds of files are zero.
type FileSource struct {
	// Source is the name of a secret, or the key of an object in the storage.
	Source string
	// Once is true for a secret or an object that a machine needs once: that it has changed is no
	// reason to send it.
	Once bool
	// Env, JSON and String are templates.
	Env    map[string]string
	JSON   any
	String string
	// Template is the name of a certificate template, and Key the name of a key of the agent.
	Template, Key string
}

// Usages of certificates.
const (
	UsageClient = "client"
	UsageServer = "server"
)

// CertificateTemplate describes the certificates for keys of agents. All strings but Usage
// are templates.
type CertificateTemplate struct {
	// Usage is UsageClient or UsageServer.
	Usage         string
	CommonName    string
	Organizations []string
	// DNS, IP and URI are the subject alternative names. Names that render as empty text are
	// left out.
	DNS, IP, URI []string
	TTL          time.Duration
}

// certificateRoles are the entries of certificates that are not templates.
var certificateRoles = []string{"operator", "agent"}

// defaultCertificateTTL applies to a certificate template without a TTL.
const defaultCertificateTTL = 365 * 24 * time.Hour

func readCertificateTemplates(o *jsonc.Object) map[string]CertificateTemplate {
	var templates map[string]CertificateTemplate
	for _, name := range o.Names() {
		if slices.Contains(certificateRoles, name) {
			continue
		}
		if templates == nil {
			templates = map[string]CertificateTemplate{}
		}
		templates[name] = readCertificateTemplate(o.Object(name))
	}
	return templates
}

func readCertificateTemplate(o *jsonc.Object) CertificateTemplate {
	ttl := defaultCertificateTTL
	if o.Has("ttl") {
		ttl = readTTLMember(o)
	}
	template := CertificateTemplate{
		Usage:         o.String("kind"),
		CommonName:    o.String("cn"),
		Organizations: o.Strings("organization"),
		DNS:           o.Strings("dns"),
		IP:            o.Strings("ip"),
		URI:           o.Strings("uri"),
		TTL:           ttl,
	}
	o.Finish()
	return template
}

func (c *Config) validateCertificates(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(c.Certificates)) {
		path, template := path.Child(name), c.Certificates[name]
		if template.Usage != UsageClient && template.Usage != UsageServer {
			errs = append(errs, field.NotSupported(path.Child("kind"), template.Usage, []string{UsageClient, UsageServer}))
		}
		errs = append(errs, validation.Required(path.Child("cn"), template.CommonName)...)
		errs = append(errs, validateTemplate(path.Child("cn"), template.CommonName)...)
		for member, values := range map[string][]string{"organization": template.Organizations, "dns": template.DNS, "ip": template.IP, "uri": template.URI} {
			for n, value := range values {
				errs = append(errs, validateTemplate(path.Child(member).Index(n), value)...)
			}
		}
	}
	return errs
}

var (
	// fileName matches the names that agents accept: no folder, not hidden, of a type that
	// they can check.
	fileName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*\.(env|crt|pub|key|json)$`)
	keyName  = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// maxFileName is the maximum length of the name of a file or a key.
const maxFileName = 200

// validateFiles checks the name, the kind and the content of each file.
func (c *Config) validateFiles(path *field.Path, files map[string]File) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path, file := path.Child(name), files[name]
		switch {
		case strings.ContainsAny(name, `/\`):
			errs = append(errs, field.Invalid(path, name, "must be the name of a file, without its folder"))
		case !fileName.MatchString(name) || len(name) > maxFileName:
			errs = append(errs, field.Invalid(path, name, "must consist of letters, digits, dots, hyphens and underscores, and end with .env, .crt, .pub, .key or .json"))
		}
		if !slices.Contains(fileKinds, file.Kind) {
			errs = append(errs, field.NotSupported(path.Child("kind"), file.Kind, fileKinds))
			continue
		}
		source, err := file.Parse()
		if err != nil {
			// The content may be confidential.
			errs = append(errs, field.Invalid(path, field.OmitValueType{}, err.Error()))
			continue
		}
		if file.Kind == FileCertificate {
			if _, found := c.Certificates[source.Template]; !found {
				errs = append(errs, field.Invalid(path.Child("template"), source.Template, "unknown certificate template, known are "+validation.Keys(c.Certificates)))
			}
		}
		errs = append(errs, validateTemplates(path, file.Content)...)
	}
	return errs
}

// Parse returns how to make the file. The error names the missing or wrong keys, and shows no
// part of the content.
func (f File) Parse() (FileSource, error) {
	var s FileSource
	known := []string{f.Kind}
	var err error
	switch f.Kind {
	case FileSecret, FileStorage:
		known = []string{"source", "once"}
		s.Source, err = textOf(f.Content, "source")
		if err == nil {
			err = checkSource(f.Kind, s.Source)
		}
		if once, has := f.Content["once"]; has && err == nil {
			var ok bool
			if s.Once, ok = once.(bool); !ok {
				err = errors.New("once must be true or false")
			}
		}
	case FileEnv:
		s.Env, err = environmentOf(f.Content)
	case FileJSON:
		value, found := f.Content[FileJSON]
		if !found {
			err = errors.New("must have json")
		}
		s.JSON = value
	case FileString:
		s.String, err = textOf(f.Content, FileString)
	case FileCertificate:
		known = []string{"template", "key"}
		if s.Template, err = textOf(f.Content, "template"); err == nil {
			s.Key, err = keyOf(f.Content)
		}
	default:
		return s, fmt.Errorf("has the unknown kind %q", f.Kind)
	}
	if err != nil {
		return s, err
	}
	for name := range f.Content {
		if !slices.Contains(known, name) {
			return s, fmt.Errorf("must not have %q, which a file of kind %s does not know", name, f.Kind)
		}
	}
	return s, nil
}

func textOf(content map[string]any, name string) (string, error) {
	text, ok := content[name].(string)
	if !ok || text == "" {
		return "", fmt.Errorf("must have %s, a string", name)
	}
	return text, nil
}

func environmentOf(content map[string]any) (map[string]string, error) {
	object, ok := content[FileEnv].(map[string]any)
	if !ok {
		return nil, errors.New("must have env, an object")
	}
	env := make(map[string]string, len(object))
	for name, value := range object {
		text, ok := value.(string)
		if !ok || !envName.MatchString(name) {
			return nil, errors.New("env must have names of letters, digits and underscores with strings as values")
		}
		env[name] = text
	}
	return env, nil
}

func keyOf(content map[string]any) (string, error) {
	key, ok := content["key"].(map[string]any)
	if !ok || len(key) != 2 || key["source"] != "agent" {
		return "", errors.New(`must have key, an object with source "agent" and the name of a key`)
	}
	name, _ := key["name"].(string)
	if !keyName.MatchString(name) || len(name) > maxFileName {
		return "", errors.New("key.name must consist of letters, digits, dots, hyphens and underscores")
	}
	return name, nil
}

// checkSource rejects objects with state of the servers. A source is not rendered: otherwise
// vars of operators could choose another object.
func checkSource(kind, source string) error {
	if storage.CheckKey(source) != nil {
		return errors.New("source must be a key of the storage")
	}
	reserved := storage.IsReserved(source)
	if kind == FileSecret {
		reserved = storage.IsReservedSecret(source)
	}
	if reserved {
		return errors.New("source must not be an object of the servers")
	}
	return nil
}
