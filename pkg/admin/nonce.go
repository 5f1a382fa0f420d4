// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/server/registration/nonce"
)

// toStandardOutput is the value of --output for standard output.
const toStandardOutput = "-"

func newNonceCommand() *cobra.Command {
	var options clusterOptions
	var expiry time.Duration
	var output string
	command := &cobra.Command{
		Use:   "nonce --storage-bucket BUCKET",
		Short: "Make a nonce with which one operator can register",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			if expiry <= 0 {
				wrong.addf("expiry", "%s must be greater than zero", expiry)
			}
			if output == "" {
				wrong.addf("output", "must be a path, or %q for the standard output", toStandardOutput)
			}
			if err := wrong.join(); err != nil {
				return err
			}
			loaded, err := options.loadKeys(command.Context())
			if err != nil {
				return err
			}
			token, err := nonce.NewSigner(loaded.Nonce).Operator(nonce.Operator{
				ClusterID: options.clusterID,
				Tenant:    options.tenant,
				Lifetime:  expiry,
			})
			if err != nil {
				return err
			}
			return writeNonce(command.OutOrStdout(), output, token)
		},
	}
	options.addFlags(command.Flags())
	command.Flags().DurationVar(&expiry, "expiry", nonce.DefaultOperatorLifetime, "how long the nonce is good")
	command.Flags().StringVar(&output, "output", toStandardOutput, "file to write the nonce to, or - for the standard output")
	return command
}

// writeNonce prints a nonce with a line break, or writes it without one to a file,
// so that a Secret can be created from the file.
func writeNonce(standardOutput io.Writer, output, token string) error {
	if output == toStandardOutput {
		_, err := fmt.Fprintln(standardOutput, token)
		return err
	}
	if err := writeFile(filepath.Clean(output), []byte(token)); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}
