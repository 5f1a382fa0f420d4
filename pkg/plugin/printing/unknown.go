// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package printing

import (
	"fmt"
	"io"
)

// PrintUnknown writes what could not be read.
func PrintUnknown(w io.Writer, unknown []string) {
	if len(unknown) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nUNKNOWN")
	for _, why := range unknown {
		_, _ = fmt.Fprintln(w, "unknown: "+why)
	}
}
