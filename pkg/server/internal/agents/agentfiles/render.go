// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agentfiles makes the files of instances and sends them to the agents
// (docs/server-reference.md#files). It stores nothing: the reports of an agent say which files it has.
package agentfiles

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provision"
)

// maxFile is the maximum size of a file, in bytes: one message has the whole file.
const maxFile = 1 << 20

// File is a file of an instance. Its content must not be logged or stored.
type File struct {
	Name    string
	Content []byte
}

// Patch has all files of an instance, or all that need no missing key.
type Patch struct {
	Files []File
	// Partial is true if files are missing because the agent has not sent their keys. Then the
	// agent keeps files of earlier patches that this patch lacks.
	Partial bool
	// ConfigHash is the hash of the configuration that the files are made from, with a digest of
	// their secrets and objects.
	ConfigHash string
	// digests has the digests of these secrets and objects.
	digests map[source]string
	// At is when the files were made.
	At time.Time
}

// Renderer makes files. It is safe for concurrent use. All fields are mandatory.
type Renderer struct {
	Config func() *config.Config
	// Facts has the values for templates.
	Facts func(*groups.Group, *instance.Instance) provision.FileFacts
	// Secret and Object read a secret and an object of the storage.
	Secret func(ctx context.Context, name string) ([]byte, error)
	Object func(ctx context.Context, key string) ([]byte, error)
	// Digest returns a digest of a content, which is the same on each server of the cluster. Who
	// has the digest must not be able to find out the content by trying: it is in logs.
	Digest func(content []byte) string
	// HasClusterKey reports whether a content has a private key of the cluster.
	HasClusterKey func(content []byte) bool
	// Sign signs a certificate for the key of an instance.
	Sign func(pki.Workload, crypto.PublicKey) ([]byte, error)
	// Issue is called with the certificates of a patch that has some. The patch is sent only if
	// it returns no error.
	Issue func(ctx context.Context, record *instance.Record, certificates [][]byte) error
}

// patch returns the files of an instance of a group, which provision.Effective returned. keys
// are the agent's keys. The error names the file and shows no part of its content.
func (r *Renderer) patch(ctx context.Context, group *groups.Group, i *instance.Instance, keys map[string]crypto.PublicKey) (*Patch, error) {
	patch := &Patch{At: time.Now(), digests: map[source]string{}}
	facts := r.Facts(group, i)
	var certificates [][]byte
	for _, name := range slices.Sorted(maps.Keys(group.Files)) {
		content, err := r.content(ctx, group.Files[name], facts, keys, patch.digests)
		if err == nil && len(content) > maxFile {
			err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(content), maxFile)
		}
		// The names of these keys are reserved, but who writes the configuration and the
		// secrets may have stored a copy under another name.
		if err == nil && r.HasClusterKey(content) {
			err = errors.New("it has a private key of the cluster, which no machine may get")
		}
		if err != nil {
			return nil, fmt.Errorf("make file %s: %w", name, err)
		}
		patch.Files = append(patch.Files, File{Name: name, Content: content})
		if group.Files[name].Kind == config.FileCertificate {
			certificates = append(certificates, content)
		}
	}
	patch.ConfigHash, _ = hashOf(group, patch.digests)
	if len(certificates) > 0 {
		if err := r.Issue(ctx, &i.Record, certificates); err != nil {
			return nil, err
		}
	}
	return patch, nil
}

// content returns the content of a file, and adds the digest of its secret or object to digests.
func (r *Renderer) content(ctx context.Context, file config.File, facts provision.FileFacts, keys map[string]crypto.PublicKey, digests map[source]string) ([]byte, error) {
	parsed, err := file.Parse()
	if err != nil {
		return nil, err
	}
	switch file.Kind {
	case config.FileSecret, config.FileStorage:
		s := source{file.Kind, parsed.Source}
		content, err := r.read(ctx, s)
		if err == nil && !parsed.Once {
			digests[s] = r.Digest(content)
		}
		return content, err
	case config.FileEnv:
		return environment(parsed.Env, facts)
	case config.FileJSON:
		return object(parsed.JSON, facts)
	case config.FileString:
		text, err := facts.Render(parsed.String)
		return []byte(text), err
	case config.FileCertificate:
		return r.certificate(parsed, facts, keys)
	default:
		return nil, fmt.Errorf("it has the unknown kind %q", file.Kind)
	}
}

// read returns a secret or an object.
func (r *Renderer) read(ctx context.Context, s source) ([]byte, error) {
	if s.kind == config.FileSecret {
		return r.Secret(ctx, s.name)
	}
	return r.Object(ctx, s.name)
}

// environment returns lines of the form NAME=VALUE, sorted by name.
func environment(env map[string]string, facts provision.FileFacts) ([]byte, error) {
	var lines bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value, err := facts.Render(env[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("%s: a value must have one line", name)
		}
		fmt.Fprintf(&lines, "%s=%s\n", name, value)
	}
	return lines.Bytes(), nil
}

// object returns JSON whose strings are rendered. Numbers and booleans stay unchanged.
func object(value any, facts provision.FileFacts) ([]byte, error) {
	rendered, err := facts.RenderAll(value)
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(rendered, "", "  ")
	if err != nil {
		return nil, errors.New("it cannot be encoded as JSON")
	}
	return append(data, '\n'), nil
}

// keysOf returns the names of the agent's keys for which the group has certificates.
func keysOf(group *groups.Group) []string {
	var names []string
	for _, file := range group.Files {
		if source, err := file.Parse(); err == nil && source.Key != "" {
			names = append(names, source.Key)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// certificate returns a certificate for a key of the agent, PEM.
func (r *Renderer) certificate(source config.FileSource, facts provision.FileFacts, keys map[string]crypto.PublicKey) ([]byte, error) {
	template, found := r.Config().Certificates[source.Template]
	if !found {
		return nil, fmt.Errorf("there is no certificate template %q", source.Template)
	}
	key, found := keys[source.Key]
	if !found {
		return nil, fmt.Errorf("the agent has not sent the key %q", source.Key)
	}
	workload, err := workloadOf(template, facts.Certified())
	if err != nil {
		return nil, fmt.Errorf("certificate template %q: %w", source.Template, err)
	}
	return r.Sign(workload, key)
}

// workloadOf renders a template.
func workloadOf(t config.CertificateTemplate, facts provision.FileFacts) (pki.Workload, error) {
	w := pki.Workload{Server: t.Usage == config.UsageServer, TTL: t.TTL}
	var err error
	if w.CommonName, err = facts.Render(t.CommonName); err != nil {
		return w, fmt.Errorf("cn: %w", err)
	}
	if w.Organizations, err = rendered(t.Organizations, facts); err != nil {
		return w, fmt.Errorf("organization: %w", err)
	}
	if w.DNS, err = rendered(t.DNS, facts); err != nil {
		return w, fmt.Errorf("dns: %w", err)
	}
	for _, name := range w.DNS {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return w, fmt.Errorf("dns: %q is no host name", name)
		}
	}
	addresses, err := rendered(t.IP, facts)
	if err != nil {
		return w, fmt.Errorf("ip: %w", err)
	}
	for _, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return w, fmt.Errorf("ip: %q is no address", text)
		}
		w.IP = append(w.IP, address)
	}
	uris, err := rendered(t.URI, facts)
	if err != nil {
		return w, fmt.Errorf("uri: %w", err)
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil || uri.Scheme == "" {
			return w, fmt.Errorf("uri: %q is no URI", text)
		}
		w.URI = append(w.URI, uri)
	}
	return w, nil
}

// rendered returns the rendered texts without empty ones.
func rendered(texts []string, facts provision.FileFacts) ([]string, error) {
	var values []string
	for _, text := range texts {
		value, err := facts.Render(text)
		if err != nil {
			return nil, err
		}
		if value != "" {
			values = append(values, value)
		}
	}
	return values, nil
}

// due reports whether a certificate that was made at a time must be made again: a third of
// its lifetime is left.
func due(t config.CertificateTemplate, made, now time.Time) bool {
	return now.Sub(made) > t.TTL*2/3
}
