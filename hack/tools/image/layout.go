// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nameAnnotation names the index of a layout
// (https://github.com/opencontainers/image-spec/blob/main/annotations.md).
const nameAnnotation = "org.opencontainers.image.ref.name"

// runLayout writes an OCI layout with one index.
func runLayout(args []string, out io.Writer) error {
	var o options
	var program string
	flags := flag.NewFlagSet("layout", flag.ContinueOnError)
	flags.StringVar(&program, "name", "", "name of the program, and of its binary in the folder of each architecture")
	flags.StringVar(&o.version, "version", "", "version of the program")
	flags.StringVar(&o.revision, "revision", "", "revision of its source")
	flags.StringVar(&o.output, "output", "", "folder to write; an existing one is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if program == "" || o.output == "" || flags.NArg() == 0 {
		return errors.New("-name, -output and a folder for each architecture, ARCH=FOLDER, are mandatory")
	}
	index, err := o.index(program, flags.Args())
	if err != nil {
		return err
	}
	if err := writeLayout(o.output, index, program+":"+o.version); err != nil {
		return fmt.Errorf("write layout %s: %w", o.output, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("read the digest of %s: %w", program, err)
	}
	_, err = fmt.Fprintln(out, digest)
	return err
}

// index returns the index of the images of a program. Each folder, ARCH=FOLDER, has the binary, the
// folder licenses, and the bill of materials, sbom.cdx.json.
func (o options) index(program string, folders []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, folder := range folders {
		arch, path, found := strings.Cut(folder, "=")
		if !found {
			return nil, fmt.Errorf("%q must be ARCH=FOLDER", folder)
		}
		o.arch, o.layerType = arch, types.OCILayer
		o.binary = filepath.Join(path, program)
		o.licenses = filepath.Join(path, "licenses")
		o.sbom = filepath.Join(path, "sbom.cdx.json")
		image, err := o.build()
		if err != nil {
			return nil, fmt.Errorf("build the image of %s for %s: %w", program, arch, err)
		}
		image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

// writeLayout writes a layout whose only manifest is an index.
func writeLayout(path string, index v1.ImageIndex, ref string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	written, err := layout.Write(path, empty.Index)
	if err != nil {
		return err
	}
	return written.AppendIndex(index, layout.WithAnnotations(map[string]string{nameAnnotation: ref}))
}

// readLayout returns the index in a layout that writeLayout has written, and its name.
func readLayout(path string) (v1.ImageIndex, string, error) {
	all, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, "", err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, "", err
	}
	if len(manifest.Manifests) != 1 {
		return nil, "", fmt.Errorf("the layout has %d manifests, must have one index", len(manifest.Manifests))
	}
	descriptor := manifest.Manifests[0]
	index, err := all.ImageIndex(descriptor.Digest)
	if err != nil {
		return nil, "", err
	}
	program, _, _ := strings.Cut(descriptor.Annotations[nameAnnotation], ":")
	return index, program, nil
}
