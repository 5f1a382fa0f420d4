// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
)

const (
	// operatorPrefix is the kind of the client ids of administrators
	// (docs/protocol.md#authentication).
	operatorPrefix = "opr"
	// defaultIssueExpiry is for a day's work.
	defaultIssueExpiry = 24 * time.Hour
)

// issueOptions are the options of operator issue.
type issueOptions struct {
	clusterOptions
	identity string
	expiry   time.Duration
}

func newOperatorIssueCommand() *cobra.Command {
	var options issueOptions
	command := &cobra.Command{
		Use:   "issue --storage-bucket BUCKET --identity-dir DIR",
		Short: "Issue a certificate for an administrator, with the rights of a tenant's operator",
		Long: "Issue a certificate for an administrator, with the rights of a tenant's operator.\n" +
			"It has a client id of its own: that of the operator stays valid.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			client, certificate, err := options.issue(command.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Issued a certificate of client %s in tenant %s. The certificate in %s is valid until %s.\n",
				client, options.tenant, options.identity, certificate.NotAfter.UTC().Format(time.RFC3339))
			return err
		},
	}
	options.addFlags(command.Flags())
	command.Flags().StringVar(&options.identity, identityFlag, os.Getenv(identityEnv), identityUsage+" (required)")
	command.Flags().DurationVar(&options.expiry, "expiry", defaultIssueExpiry, "how long the certificate is valid")
	return command
}

func (o *issueOptions) validate() error {
	var wrong mistakes
	o.clusterOptions.validate(&wrong)
	if o.identity == "" {
		wrong.addf(identityFlag, "must be the folder for the identity")
	}
	if o.expiry <= 0 {
		wrong.addf("expiry", "%s must be greater than zero", o.expiry)
	}
	return wrong.join()
}

// issue writes the identity to the folder. The certificate is recorded first, so that it
// can be revoked.
func (o *issueOptions) issue(ctx context.Context) (client string, certificate *x509.Certificate, err error) {
	loaded, err := o.loadKeys(ctx)
	if err != nil {
		return "", nil, err
	}
	store, err := o.open(ctx)
	if err != nil {
		return "", nil, err
	}
	key, err := ensureKey(o.identity)
	if err != nil {
		return "", nil, fmt.Errorf("--%s: %w", identityFlag, err)
	}
	id, err := puidv7.New(operatorPrefix)
	if err != nil {
		return "", nil, err
	}
	identity := pki.Client{ID: id.String(), Tenant: o.tenant, Role: pki.RoleOperator}
	certificate, err = loaded.Authority.SignClient(identity, key.Public().(ed25519.PublicKey), o.expiry)
	if err != nil {
		return "", nil, err
	}
	if err := registration.RecordIssued(ctx, store, identity, certificate); err != nil {
		return "", nil, fmt.Errorf("record the certificate of client %s: %w", identity.ID, err)
	}
	return identity.ID, certificate, writeCertificate(o.identity, loaded.Authority.CertificatePEM(), pki.EncodeCertificate(certificate))
}
