// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"github.com/spf13/cobra"
)

func newCACommand() *cobra.Command {
	var options clusterOptions
	var output string
	command := &cobra.Command{
		Use:   "ca --storage-bucket BUCKET",
		Short: "Print the certificate of the authority that servers and clients trust",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			validateOutput(&wrong, output)
			if err := wrong.join(); err != nil {
				return err
			}
			loaded, err := options.loadKeys(command.Context())
			if err != nil {
				return err
			}
			return write(command.OutOrStdout(), output, loaded.Authority.CertificatePEM())
		},
	}
	options.addFlags(command.Flags())
	addOutputFlag(command.Flags(), &output)
	return command
}
