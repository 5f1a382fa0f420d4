// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// artifact is what is pushed under one name: an index of images, or a chart.
type artifact interface {
	remote.Taggable
	Digest() (v1.Hash, error)
}

// runPush pushes layouts, as images REGISTRY/NAME:VERSION, and charts, as REGISTRY/charts/NAME:VERSION.
// It uses the credentials of Docker and Podman.
func runPush(args []string, out io.Writer) error {
	var registry, version, key string
	flags := flag.NewFlagSet("push", flag.ContinueOnError)
	flags.StringVar(&registry, "registry", "", "registry with an optional path, such as registry.example.com/nstance")
	flags.StringVar(&version, "version", "", "tag of the images")
	flags.StringVar(&key, "key", "", "file with the private key that signs what is pushed; without it nothing is signed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if registry == "" || version == "" || flags.NArg() == 0 {
		return errors.New("-registry, -version and what to push are mandatory")
	}
	var signs *signer
	if key != "" {
		var err error
		if signs, err = openSigner(key); err != nil {
			return fmt.Errorf("-key: %w", err)
		}
	}
	for _, source := range flags.Args() {
		pushed, repository, tag, err := open(source, version)
		if err != nil {
			return fmt.Errorf("read %s: %w", source, err)
		}
		ref, err := name.NewTag(path.Join(registry, repository)+":"+tag, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("-registry: %w", err)
		}
		if err := push(ref, pushed); err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
		digest, err := pushed.Digest()
		if err != nil {
			return fmt.Errorf("read the digest of %s: %w", source, err)
		}
		if signs != nil {
			if err := signs.push(ref.Repository, digest, registryOptions()...); err != nil {
				return fmt.Errorf("sign %s: %w", ref, err)
			}
		}
		if _, err := fmt.Fprintf(out, "%s@%s\n", ref, digest); err != nil {
			return err
		}
	}
	return nil
}

// open returns what is pushed, its repository below the registry, and its tag.
func open(source, version string) (pushed artifact, repository, tag string, err error) {
	if strings.HasSuffix(source, ".tgz") {
		packed, metadata, err := chart(source)
		if err != nil {
			return nil, "", "", err
		}
		// Helm replaces the plus of a version (https://helm.sh/docs/topics/registries/).
		return packed, "charts/" + metadata.Name, strings.ReplaceAll(metadata.Version, "+", "_"), nil
	}
	index, program, err := readLayout(source)
	return index, program, version, err
}

// registryOptions are the options of each call to a registry.
func registryOptions() []remote.Option {
	return []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

// push pushes an artifact, unless the tag is another one: who has pulled the tag expects that it stays.
func push(ref name.Tag, pushed artifact) error {
	digest, err := pushed.Digest()
	if err != nil {
		return err
	}
	options := registryOptions()
	present, err := remote.Head(ref, options...)
	switch {
	case err == nil && present.Digest == digest:
		return nil
	case err == nil:
		return fmt.Errorf("the tag exists with digest %s, and would be moved to %s", present.Digest, digest)
	case !isNotFound(err):
		return err
	}
	switch pushed := pushed.(type) {
	case v1.ImageIndex:
		return remote.WriteIndex(ref, pushed, options...)
	case v1.Image:
		return remote.Write(ref, pushed, options...)
	default:
		return fmt.Errorf("unexpected type %T", pushed)
	}
}

func isNotFound(err error) bool {
	refused, found := errors.AsType[*transport.Error](err)
	return found && refused.StatusCode == http.StatusNotFound
}
