// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command releaseseries checks that a metadata.yaml of clusterctl has the series of a version:
// clusterctl refuses a release of another series
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/clusterctl#metadata-yaml).
package main

import (
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: releaseseries VERSION METADATA")
		os.Exit(2)
	}
	if err := check(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// metadata is the part of a metadata.yaml that has the series.
type metadata struct {
	ReleaseSeries []series `json:"releaseSeries"`
}

// series are the releases with a major and a minor version.
type series struct {
	Major    uint   `json:"major"`
	Minor    uint   `json:"minor"`
	Contract string `json:"contract"`
}

// check returns why clusterctl would refuse a release of this version, nil if it would not.
func check(release, file string) error {
	parsed, err := version.ParseSemantic(release)
	if err != nil || release[0] != 'v' {
		return fmt.Errorf("VERSION=%s is no semantic version such as v0.1.0", release)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the series of releases: %w", err)
	}
	var known metadata
	if err := yaml.Unmarshal(text, &known); err != nil {
		return fmt.Errorf("read the series of releases in %s: %w", file, err)
	}
	if slices.ContainsFunc(known.ReleaseSeries, func(s series) bool {
		return s.Major == parsed.Major() && s.Minor == parsed.Minor() && s.Contract != ""
	}) {
		return nil
	}
	return fmt.Errorf(`%s has no series of %s, so that clusterctl would refuse the release. Add to its releaseSeries,
with the contract of Cluster API that the series implements:
  - major: %d
    minor: %d
    contract: v1beta2`, file, release, parsed.Major(), parsed.Minor())
}
