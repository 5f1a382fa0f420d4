// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
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
	files, found := tar.NewReader(mutate.Extract(first)), map[string]string{}
	for {
		header, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = fmt.Sprintf("%o %s", header.Mode, content)
	}
	want := map[string]string{
		"tmp": "1777 ", "nstance-operator": "555 program", "licenses/LICENSE": "444 ours", "licenses/THIRD_PARTY_NOTICES": "444 of others",
	}
	if !maps.Equal(found, want) {
		t.Errorf("the image has %q, want %q", found, want)
	}
}

// read writes an image and reads it back.
func read(t *testing.T, binary, output string) v1.Image {
	t.Helper()
	licenses := t.TempDir()
	for file, text := range map[string]string{"LICENSE": "ours", "THIRD_PARTY_NOTICES": "of others"} {
		if err := os.WriteFile(filepath.Join(licenses, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var printed strings.Builder
	args := []string{"-binary", binary, "-tag", "nstance-operator:v1", "-version", "v1", "-output", output, "-licenses", licenses}
	if err := run(args, &printed); err != nil {
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
	if digest, err := image.Digest(); err != nil || printed.String() != digest.String()+"\n" {
		t.Errorf("printed %q, the archive has digest %s: %v", printed.String(), digest, err)
	}
	return image
}
