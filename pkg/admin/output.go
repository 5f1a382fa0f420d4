// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"
)

// toStandardOutput is the value of --output for standard output.
const toStandardOutput = "-"

func addOutputFlag(flags *pflag.FlagSet, output *string) {
	flags.StringVar(output, "output", toStandardOutput, "file to write to, or - for the standard output")
}

func validateOutput(wrong *mistakes, output string) {
	if output == "" {
		wrong.addf("output", "must be a path, or %q for the standard output", toStandardOutput)
	}
}

// write prints data with a line break at the end, or writes it as it is to a file, so
// that a Secret can be created from the file.
func write(standardOutput io.Writer, output string, data []byte) error {
	if output == toStandardOutput {
		_, err := fmt.Fprintf(standardOutput, "%s\n", bytes.TrimSuffix(data, []byte("\n")))
		return err
	}
	if err := writeFile(filepath.Clean(output), data); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}
