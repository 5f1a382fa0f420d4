// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// Images of a folder have its files and links, and share their layer.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "files")
	write(t, filepath.Join(folder, "usr/local/bin/kube"), []byte("program"))
	if err := os.Chmod(filepath.Join(folder, "usr/local/bin/kube"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("kube", filepath.Join(folder, "usr/local/bin/etcd")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "images", "control-plane.tar")
	args := []string{"archive", "-folder", folder, "-output", path}
	if err := run(append(args, "localhost/kubernetes/etcd:3.6", "localhost/kubernetes/coredns:v1=/usr/local/bin/coredns"), io.Discard); err != nil {
		t.Fatal(err)
	}
	var layers []v1.Hash
	for reference, entrypoint := range map[string][]string{"localhost/kubernetes/etcd:3.6": nil, "localhost/kubernetes/coredns:v1": {"/usr/local/bin/coredns"}} {
		tag, err := name.NewTag(reference)
		if err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != "" || !slices.Equal(config.Config.Entrypoint, entrypoint) || !slices.Equal(config.Config.Env, []string{searchPath}) {
			t.Errorf("%s has %+v", reference, config.Config)
		}
		layers = append(layers, config.RootFS.DiffIDs...)
		found := map[string]string{}
		for files := tar.NewReader(mutate.Extract(image)); ; {
			header, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			if header.Typeflag != tar.TypeDir {
				found[header.Name] = header.FileInfo().Mode().Perm().String() + " " + header.Linkname + string(content)
			}
		}
		if want := map[string]string{"usr/local/bin/kube": "-rwxr-xr-x program", "usr/local/bin/etcd": "-rwxrwxrwx kube"}; !maps.Equal(found, want) {
			t.Errorf("%s has %q", reference, found)
		}
	}
	if len(layers) != 2 || layers[0] != layers[1] {
		t.Errorf("layers %v", layers)
	}
	for _, wrong := range [][]string{args, append(args, "a b"), {"archive", "-folder", filepath.Join(dir, "none"), "-output", path, "a:b"}} {
		if err := run(wrong, io.Discard); err == nil {
			t.Errorf("%q was packed", wrong)
		}
	}
}
