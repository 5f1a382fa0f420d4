// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command image packs static binaries into container images, without a container engine and without a
// base image, and Helm charts into artifacts of a registry.
//
//	image -binary FILE -tag NAME:TAG -output FILE …
//	image layout -name NAME -output FOLDER … ARCH=FOLDER…
//	image archive -folder FOLDER -output FILE NAME:TAG[=PROGRAM]…
//	image push -registry REGISTRY -version VERSION [-key FILE] LAYOUT|CHART.tgz…
//	image sign -key FILE FILE
//
// The first form writes an archive for "docker load", "podman load" or "ctr images import", and prints
// the digest that the image has in a registry if the archive is pushed as it is, such as with "crane
// push". The second writes an OCI layout with an index of one image for each architecture, and prints
// the digest of the index. The third writes an archive of images that have the files of a folder. The
// fourth pushes layouts and charts, with signatures if there is a key, and prints their names with
// digests. The fifth prints the signature of a file.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the user of distroless images: not root
// (https://github.com/GoogleContainerTools/distroless).
const user = "65532:65532"

// options describes the image to build.
type options struct {
	binary, tag, version, revision, output string
	// arch is the architecture of the binary.
	arch string
	// layerType is the media type of the layer.
	layerType types.MediaType
	// licenses is a folder whose files the image has in /licenses.
	licenses string
	// sbom is the bill of materials, which the image has as /sbom.cdx.json.
	sbom string
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "archive":
			return runArchive(args[1:])
		case "layout":
			return runLayout(args[1:], out)
		case "push":
			return runPush(args[1:], out)
		case "sign":
			return runSign(args[1:], out)
		}
	}
	o := options{layerType: types.DockerLayer}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.binary, "binary", "", "the static binary, which becomes the entry point")
	flags.StringVar(&o.tag, "tag", "", "name and tag of the image")
	flags.StringVar(&o.version, "version", "", "version of the binary")
	flags.StringVar(&o.revision, "revision", "", "revision of its source")
	flags.StringVar(&o.output, "output", "", "archive to write")
	flags.StringVar(&o.arch, "arch", runtime.GOARCH, "architecture of the binary")
	flags.StringVar(&o.licenses, "licenses", "", "folder with licenses and notices, which the image has in /licenses")
	flags.StringVar(&o.sbom, "sbom", "", "bill of materials, which the image has as /sbom.cdx.json")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return o.write(out)
}

// write writes the archive, and prints its digest.
func (o options) write(out io.Writer) error {
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return fmt.Errorf("-tag: %w", err)
	}
	image, err := o.build()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.output), 0o755); err != nil {
		return err
	}
	if err := tarball.WriteToFile(o.output, tag, image); err != nil {
		return fmt.Errorf("-output: %w", err)
	}
	pushed, err := tarball.ImageFromPath(o.output, &tag)
	if err != nil {
		return fmt.Errorf("read %s again: %w", o.output, err)
	}
	digest, err := pushed.Digest()
	if err != nil {
		return fmt.Errorf("read the digest of %s: %w", o.output, err)
	}
	_, err = fmt.Fprintln(out, digest)
	return err
}

// build returns the image. Images of the same binary are identical.
func (o options) build() (v1.Image, error) {
	binary, err := os.ReadFile(o.binary)
	if err != nil {
		return nil, fmt.Errorf("-binary: %w", err)
	}
	entrypoint := "/" + filepath.Base(o.binary)
	contents := []file{{path: entrypoint, mode: 0o555, data: binary}}
	licenses, err := o.readLicenses()
	if err != nil {
		return nil, fmt.Errorf("-licenses: %w", err)
	}
	contents = append(contents, licenses...)
	if o.sbom != "" {
		sbom, err := os.ReadFile(o.sbom)
		if err != nil {
			return nil, fmt.Errorf("-sbom: %w", err)
		}
		contents = append(contents, file{path: "/sbom.cdx.json", mode: 0o444, data: sbom})
	}
	content, err := layer(contents)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", o.binary, err)
	}
	files, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithMediaType(o.layerType))
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, files)
	if err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}
	return mutate.ConfigFile(image, o.config(image, entrypoint))
}

// config returns the configuration of an image that has its layers.
func (o options) config(image v1.Image, entrypoint string) *v1.ConfigFile {
	config := &v1.ConfigFile{
		OS:           "linux",
		Architecture: o.arch,
		Config: v1.Config{
			Entrypoint: []string{entrypoint},
			User:       user,
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":    filepath.Base(entrypoint),
				"org.opencontainers.image.version":  o.version,
				"org.opencontainers.image.revision": o.revision,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	}
	if present, err := image.ConfigFile(); err == nil {
		config.RootFS = present.RootFS
	}
	return config
}

// file is a file of the image.
type file struct {
	path string
	mode int64
	data []byte
}

// readLicenses returns the files of the folder with licenses, sorted by name.
func (o options) readLicenses() ([]file, error) {
	if o.licenses == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(o.licenses)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(o.licenses, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: "/licenses/" + entry.Name(), mode: 0o444, data: data})
	}
	return files, nil
}

// layer returns an archive with files, and a folder for temporary files.
func layer(files []file) ([]byte, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	epoch := time.Unix(0, 0)
	if err := writer.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: epoch}); err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := writer.WriteHeader(&tar.Header{Name: file.path[1:], Mode: file.mode, Size: int64(len(file.data)), ModTime: epoch}); err != nil {
			return nil, err
		}
		if _, err := writer.Write(file.data); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}
