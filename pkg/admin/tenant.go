// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"fmt"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/server/clientauth"
)

const (
	kubernetesClusterFlag = "kubernetes-cluster"
	releaseFlag           = "release"
)

func newTenantAdoptCommand() *cobra.Command {
	var options storageOptions
	var cluster string
	var release bool
	command := &cobra.Command{
		Use:   "adopt --storage-bucket BUCKET --tenant TENANT {--kubernetes-cluster UID | --release}",
		Short: "Let the operator of another Kubernetes cluster take over a tenant",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var wrong mistakes
			options.validate(&wrong)
			options.validateTenant(&wrong)
			if (cluster == "") != release {
				wrong.addf(kubernetesClusterFlag, "must be the UID of the namespace kube-system of the Kubernetes cluster, unless --%s is set", releaseFlag)
			}
			if err := wrong.join(); err != nil {
				return err
			}
			store, err := options.open(command.Context())
			if err != nil {
				return err
			}
			done := fmt.Sprintf("Tenant %s belongs to the Kubernetes cluster %s.", options.tenant, cluster)
			if release {
				done = fmt.Sprintf("Tenant %s will belong to the Kubernetes cluster whose operator calls next.", options.tenant)
				err = clientauth.Release(command.Context(), store, options.tenant)
			} else {
				err = clientauth.Adopt(command.Context(), store, options.tenant, cluster)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), done, "The servers apply it within 30 seconds.")
			return err
		},
	}
	options.addFlags(command.Flags())
	options.addTenantFlag(command.Flags())
	command.Flags().StringVar(&cluster, kubernetesClusterFlag, "", "UID of the namespace kube-system of the Kubernetes cluster that the tenant belongs to from now on")
	command.Flags().BoolVar(&release, releaseFlag, false, "let the next operator that calls decide")
	return command
}
