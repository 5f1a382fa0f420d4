// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/server/registration/nonce"
)

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
			validateOutput(&wrong, output)
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
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			if err := warnOfNewTenant(command.Context(), command.ErrOrStderr(), store, options.tenant); err != nil {
				return err
			}
			return write(command.OutOrStdout(), output, []byte(token))
		},
	}
	options.addFlags(command.Flags())
	command.Flags().DurationVar(&expiry, "expiry", nonce.DefaultOperatorLifetime, "how long the nonce is good")
	addOutputFlag(command.Flags(), &output)
	return command
}
