// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
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
			if expiry > registration.MaxNonceLifetime {
				wrong.addf("expiry", "%s must be at most %s", expiry, registration.MaxNonceLifetime)
			}
			validateOutput(&wrong, output)
			if err := wrong.join(); err != nil {
				return err
			}
			loaded, err := options.loadKeys(command.Context())
			if err != nil {
				return err
			}
			token, err := options.nonce(command.Context(), loaded, expiry)
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
	command.Flags().DurationVar(&expiry, "expiry", registration.DefaultNonceLifetime, "how long the nonce is valid, at most "+registration.MaxNonceLifetime.String())
	addOutputFlag(command.Flags(), &output)
	return command
}

// nonce returns a nonce that the audit log has.
func (o *clusterOptions) nonce(ctx context.Context, loaded *clusterkeys.Keys, lifetime time.Duration) (string, error) {
	expires := time.Now().Add(lifetime)
	token, err := registration.NewNonceSigner(loaded.Nonce).Operator(registration.OperatorNonce{
		ClusterID: o.clusterID,
		Tenant:    o.tenant,
		Lifetime:  lifetime,
	})
	if err != nil {
		return "", err
	}
	err = o.audit(ctx, auditlog.Entry{
		Action: audit.IssueNonce, Name: storage.OperatorNonceKey(token), Tenant: o.tenant, Client: o.clusterID, ExpiresAt: expires.UTC(), Reason: "command",
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// registerOptions has the flags of cluster register-operator.
type registerOptions struct {
	cluster      clusterOptions
	registration string
	identity     string
	timeout      time.Duration
}

func newRegisterCommand() *cobra.Command {
	var options registerOptions
	command := &cobra.Command{
		Use:   "register-operator --storage-bucket BUCKET --registration HOST:PORT --identity-dir DIR",
		Short: "Get a certificate to call servers with, as the operator of a tenant has it",
		Long: "Get a certificate to call servers with, as the operator of a tenant has it.\n" +
			"A tenant has one operator: the certificate replaces the present one, which is accepted for another 10 minutes.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(command.Context(), options.timeout)
			defer cancel()
			expires, err := options.register(ctx)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "Registered as the operator of tenant %s in cluster %s. The certificate in %s is valid until %s.\n",
				options.cluster.tenant, options.cluster.clusterID, options.identity, expires.Format(time.RFC3339))
			return err
		},
	}
	options.cluster.addFlags(command.Flags())
	command.Flags().StringVar(&options.registration, "registration", "", "address for registrations of the server that leads the cluster, host:port (required)")
	command.Flags().StringVar(&options.identity, identityFlag, os.Getenv(identityEnv), identityUsage+" (required)")
	command.Flags().DurationVar(&options.timeout, timeoutFlag, defaultTimeout, timeoutUsage)
	return command
}

func (o *registerOptions) validate() error {
	var wrong mistakes
	o.cluster.validate(&wrong)
	wrong.add("registration", validateAddress(o.registration))
	if o.identity == "" {
		wrong.addf(identityFlag, "must be the folder for the identity")
	}
	if o.timeout <= 0 {
		wrong.addf(timeoutFlag, "%s must be greater than zero", o.timeout)
	}
	return wrong.join()
}

// register exchanges a nonce and a public key for a certificate. It stores the
// private key first, so that no certificate is issued without a stored key.
func (o *registerOptions) register(ctx context.Context) (expires time.Time, err error) {
	loaded, err := o.cluster.loadKeys(ctx)
	if err != nil {
		return time.Time{}, err
	}
	key, err := ensureKey(o.identity)
	if err != nil {
		return time.Time{}, fmt.Errorf("--%s: %w", identityFlag, err)
	}
	request, err := keys.NewRequest(key)
	if err != nil {
		return time.Time{}, err
	}
	// The nonce is used at once, so a short lifetime is enough.
	token, err := o.cluster.nonce(ctx, loaded, min(o.timeout+time.Minute, registration.MaxNonceLifetime))
	if err != nil {
		return time.Time{}, err
	}
	caPEM := loaded.Authority.CertificatePEM()
	tlsConfig, err := trust(caPEM)
	if err != nil {
		return time.Time{}, err
	}
	connection, err := dial(o.registration, tlsConfig)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = connection.Close() }()
	response, err := nstancev1.NewRegistrationServiceClient(connection).RegisterOperator(ctx, &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: token,
		PublicKeyPem:         request.PublicKeyPEM,
		CertificateRequest:   request.CertificateRequest,
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("register at %s: %w", o.registration, statusError(err))
	}
	return response.GetExpiresAt().AsTime(), writeCertificate(o.identity, caPEM, response.GetClientCertificatePem())
}
