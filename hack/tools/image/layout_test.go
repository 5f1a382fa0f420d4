// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var architectures = []string{"amd64", "arm64"}

// newLayout builds the layout of a program and returns its path and the printed digest.
func newLayout(t *testing.T, program, text string) (path, digest string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "layout")
	args := []string{"layout", "-name", program, "-version", "v1.2.3", "-revision", "abc", "-output", path}
	for _, arch := range architectures {
		folder := filepath.Join(dir, arch)
		for file, content := range map[string]string{
			program: text + " for " + arch, "licenses/LICENSE": "ours", "licenses/THIRD_PARTY_NOTICES": "of others of " + arch, "sbom.cdx.json": "{}",
		} {
			write(t, filepath.Join(folder, file), []byte(content))
		}
		args = append(args, arch+"="+folder)
	}
	var printed strings.Builder
	if err := run(args, &printed); err != nil {
		t.Fatal(err)
	}
	return path, strings.TrimSuffix(printed.String(), "\n")
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// contents returns the contents of the files of an image.
func contents(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	found := map[string]string{}
	for files := tar.NewReader(mutate.Extract(image)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			found[header.Name] = string(content)
		}
	}
}

// expectImages expects an index of the images of newLayout, in the media types of OCI
// (https://github.com/opencontainers/image-spec/blob/main/media-types.md).
func expectImages(t *testing.T, index v1.ImageIndex, program, text string) {
	t.Helper()
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.MediaType != types.OCIImageIndex || len(manifest.Manifests) != len(architectures) {
		t.Fatalf("index %+v", manifest)
	}
	for i, arch := range architectures {
		descriptor := manifest.Manifests[i]
		if descriptor.Platform == nil || descriptor.Platform.String() != "linux/"+arch || descriptor.MediaType != types.OCIManifestSchema1 {
			t.Errorf("descriptor %+v", descriptor)
		}
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		own, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		if own.Config.MediaType != types.OCIConfigJSON || len(own.Layers) != 1 || own.Layers[0].MediaType != types.OCILayer {
			t.Errorf("manifest %+v", own)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.OS != "linux" || config.Config.User != user || config.Config.Entrypoint[0] != "/"+program {
			t.Errorf("configuration %+v", config)
		}
		want := map[string]string{
			program: text + " for " + arch, "licenses/LICENSE": "ours", "licenses/THIRD_PARTY_NOTICES": "of others of " + arch, "sbom.cdx.json": "{}",
		}
		if got := contents(t, image); !maps.Equal(got, want) {
			t.Errorf("the image for %s has %q, want %q", arch, got, want)
		}
	}
}

// A layout has an image for each architecture. The same binaries give the same digest in another
// folder.
func TestLayout(t *testing.T) {
	path, digest := newLayout(t, "nstance-server", "program")
	if _, again := newLayout(t, "nstance-server", "program"); again != digest {
		t.Errorf("the same binaries give indexes %s and %s", digest, again)
	}
	if _, other := newLayout(t, "nstance-server", "changed"); other == digest {
		t.Errorf("other binaries give the same index %s", digest)
	}
	index, program, err := readLayout(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := index.Digest(); err != nil || got.String() != digest {
		t.Errorf("printed %s, the layout has %s: %v", digest, got, err)
	}
	if program != "nstance-server" {
		t.Errorf("the layout is of %q", program)
	}
	expectImages(t, index, "nstance-server", "program")
}

func TestLayoutNeedsEachFile(t *testing.T) {
	dir := t.TempDir()
	args := []string{"layout", "-name", "a", "-output", filepath.Join(dir, "layout")}
	for _, file := range []string{"a", "licenses/LICENSE", "sbom.cdx.json"} {
		if err := run(append(args, "amd64="+dir), io.Discard); err == nil {
			t.Errorf("a layout without %s", file)
		}
		write(t, filepath.Join(dir, file), []byte("x"))
	}
	if err := run(append(args, dir), io.Discard); err == nil || !strings.Contains(err.Error(), "ARCH=FOLDER") {
		t.Errorf("a folder without an architecture: %v", err)
	}
	if err := run(append(args, "amd64="+dir), io.Discard); err != nil {
		t.Error(err)
	}
}

// newChart writes the archive of a chart.
func newChart(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nstance-server.tgz")
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	files := tar.NewWriter(compressed)
	for _, file := range [][2]string{{"nstance-server/values.yaml", "{}"}, {"nstance-server/Chart.yaml", "apiVersion: v2\nname: nstance-server\nversion: " + version + "\n"}} {
		if err := files.WriteHeader(&tar.Header{Name: file[0], Mode: 0o644, Size: int64(len(file[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(files, file[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(files.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	write(t, path, archive.Bytes())
	return path
}

// newRegistry returns the name of a registry on this machine.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/team"
}

// What was pushed can be pulled by its tag and by the printed digest, which is the digest of the
// layout. Pushing it again changes nothing.
func TestPush(t *testing.T) {
	prefix := newRegistry(t)
	path, digest := newLayout(t, "nstance-server", "program")
	for range 2 {
		var printed strings.Builder
		if err := run([]string{"push", "-registry", prefix, "-version", "v1.2.3", path}, &printed); err != nil {
			t.Fatal(err)
		}
		if want := prefix + "/nstance-server:v1.2.3@" + digest + "\n"; printed.String() != want {
			t.Errorf("printed %s, want %s", printed.String(), want)
		}
	}
	for _, reference := range []string{prefix + "/nstance-server:v1.2.3", prefix + "/nstance-server@" + digest} {
		ref, err := name.ParseReference(reference)
		if err != nil {
			t.Fatal(err)
		}
		index, err := remote.Index(ref)
		if err != nil {
			t.Fatal(err)
		}
		expectImages(t, index, "nstance-server", "program")
		// As a container engine pulls it.
		for _, arch := range architectures {
			image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
			if err != nil {
				t.Fatal(err)
			}
			if got := contents(t, image)["nstance-server"]; got != "program for "+arch {
				t.Errorf("the image for %s has %q", arch, got)
			}
		}
	}
}

// A tag that exists is not moved.
func TestPushMovesNoTag(t *testing.T) {
	prefix := newRegistry(t)
	first, digest := newLayout(t, "nstance-server", "program")
	second, _ := newLayout(t, "nstance-server", "changed")
	args := []string{"push", "-registry", prefix, "-version", "v1.2.3"}
	if err := run(append(args, first), io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := run(append(args, second), io.Discard); err == nil || !strings.Contains(err.Error(), "the tag exists with digest "+digest) {
		t.Errorf("got %v", err)
	}
	ref, err := name.NewTag(prefix + "/nstance-server:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if present, err := remote.Head(ref); err != nil || present.Digest.String() != digest {
		t.Errorf("the tag is %+v: %v", present, err)
	}
}

// A chart is pushed as Helm pulls it (https://helm.sh/docs/topics/registries/#helm-chart-manifest), and
// has the same digest each time.
func TestPushChart(t *testing.T) {
	prefix := newRegistry(t)
	path := newChart(t, "1.2.3+build")
	var printed strings.Builder
	if err := run([]string{"push", "-registry", prefix, "-version", "v1.2.3", path}, &printed); err != nil {
		t.Fatal(err)
	}
	pushed, digest, _ := strings.Cut(strings.TrimSuffix(printed.String(), "\n"), "@")
	if want := prefix + "/charts/nstance-server:1.2.3_build"; pushed != want {
		t.Errorf("pushed %s, want %s", pushed, want)
	}
	ref, err := name.ParseReference(pushed)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := image.Digest(); err != nil || got.String() != digest {
		t.Errorf("printed %s, the registry has %s: %v", digest, got, err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Config.MediaType != chartConfigType || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != chartContentType {
		t.Errorf("manifest %+v", manifest)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	metadata := map[string]string{}
	if err := json.Unmarshal(config, &metadata); err != nil || metadata["name"] != "nstance-server" || metadata["apiVersion"] != "v2" {
		t.Errorf("configuration %s: %v", config, err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the registry has another archive: %v", err)
	}
}
