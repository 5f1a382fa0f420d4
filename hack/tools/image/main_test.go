// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The image in the archive runs the binary, not as root, and is always the same.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "nstance-operator")
	if err := os.WriteFile(binary, []byte("program"), 0o644); err != nil {
		t.Fatal(err)
	}
	first, second := read(t, binary, filepath.Join(dir, "a", "first.tar")), read(t, binary, filepath.Join(dir, "second.tar"))
	digest, err := first.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if other, err := second.Digest(); err != nil || other != digest {
		t.Errorf("the same binary gives images %s and %s: %v", digest, other, err)
	}
	config, err := first.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if entrypoint := config.Config.Entrypoint; len(entrypoint) != 1 || entrypoint[0] != "/nstance-operator" {
		t.Errorf("entry point %v", entrypoint)
	}
	if config.Config.User != "65532:65532" || config.OS != "linux" || config.Config.Labels["org.opencontainers.image.version"] != "v1" {
		t.Errorf("config %+v", config)
	}
	files := tar.NewReader(mutate.Extract(first))
	for {
		header, err := files.Next()
		if err == io.EOF {
			t.Fatal("the image has no binary")
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name != "nstance-operator" {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil || string(content) != "program" || header.Mode != 0o555 {
			t.Errorf("the binary is %q, mode %o: %v", content, header.Mode, err)
		}
		return
	}
}

// read writes an image and reads it back.
func read(t *testing.T, binary, output string) v1.Image {
	t.Helper()
	if err := (options{binary: binary, tag: "nstance-operator:v1", version: "v1", output: output}).write(); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("nstance-operator:v1")
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(output, &tag)
	if err != nil {
		t.Fatal(err)
	}
	return image
}
