// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of a chart in a registry (https://helm.sh/docs/topics/registries/#helm-chart-manifest).
const (
	chartConfigType  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContentType types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartMetadata is what is used of Chart.yaml.
type chartMetadata struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// chartImage is a chart as an artifact: its metadata and its archive, as Helm pushes them.
type chartImage struct {
	config  []byte
	content v1.Layer
}

// chart reads the archive of a chart.
func chart(path string) (v1.Image, chartMetadata, error) {
	var metadata chartMetadata
	archive, err := os.ReadFile(path)
	if err != nil {
		return nil, metadata, err
	}
	text, err := readChartYAML(archive)
	if err != nil {
		return nil, metadata, err
	}
	config, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, metadata, fmt.Errorf("read Chart.yaml: %w", err)
	}
	if err := json.Unmarshal(config, &metadata); err != nil {
		return nil, metadata, fmt.Errorf("read Chart.yaml: %w", err)
	}
	if metadata.Name == "" || metadata.Version == "" {
		return nil, metadata, errors.New("Chart.yaml has no name or no version")
	}
	core := &chartImage{config: config, content: static.NewLayer(archive, chartContentType)}
	image, err := partial.CompressedToImage(core)
	return image, metadata, err
}

// readChartYAML returns NAME/Chart.yaml of an archive.
func readChartYAML(archive []byte) ([]byte, error) {
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(compressed); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the archive has no Chart.yaml")
		}
		if err != nil {
			return nil, err
		}
		if _, name, _ := strings.Cut(header.Name, "/"); name == "Chart.yaml" {
			return io.ReadAll(files)
		}
	}
}

// MediaType implements partial.CompressedImageCore.
func (c *chartImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawConfigFile implements partial.CompressedImageCore.
func (c *chartImage) RawConfigFile() ([]byte, error) { return c.config, nil }

// RawManifest implements partial.CompressedImageCore.
func (c *chartImage) RawManifest() ([]byte, error) {
	config, size, err := v1.SHA256(bytes.NewReader(c.config))
	if err != nil {
		return nil, err
	}
	digest, err := c.content.Digest()
	if err != nil {
		return nil, err
	}
	contentSize, err := c.content.Size()
	if err != nil {
		return nil, err
	}
	return json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        v1.Descriptor{MediaType: chartConfigType, Size: size, Digest: config},
		Layers:        []v1.Descriptor{{MediaType: chartContentType, Size: contentSize, Digest: digest}},
	})
}

// LayerByDigest implements partial.CompressedImageCore.
func (c *chartImage) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	own, err := c.content.Digest()
	if err != nil {
		return nil, err
	}
	if digest != own {
		return nil, fmt.Errorf("the chart has no layer %s", digest)
	}
	return c.content, nil
}
