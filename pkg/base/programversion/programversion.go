// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package programversion describes the version of a program in one line.
package programversion

import (
	"cmp"
	"fmt"

	"github.com/prometheus/common/version"
)

// Text returns what a program prints for --version: its name, the version and the revision of the
// build, the version of Go, and the platform. Branch, user and date of the build are left out:
// releases do not have them, because they would differ from build to build.
func Text(program string) string {
	return fmt.Sprintf("%s, version %s (revision %s, %s, %s/%s)",
		program, cmp.Or(version.Version, "unknown"), cmp.Or(version.GetRevision(), "unknown"), version.GoVersion, version.GoOS, version.GoArch)
}
