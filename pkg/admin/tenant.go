// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
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

// warnOfNewTenant writes a warning if no object in the storage has the tenant: its name may
// be misspelled, and an operator with the nonce would see no groups. It is not an error,
// because a tenant without static groups is unknown until its operator has registered. It
// does not warn about the default tenant of a new cluster.
func warnOfNewTenant(ctx context.Context, output io.Writer, store storage.Store, tenant string) error {
	known, err := knownTenants(ctx, store)
	if err != nil {
		_, err = fmt.Fprintf(output, "Warning: it is not known whether tenant %q exists: %v\n", tenant, err)
		return err
	}
	if known.Has(tenant) || known.Len() == 0 && tenant == registration.DefaultTenant {
		return nil
	}
	others := "no other tenant is known"
	if known.Len() > 0 {
		others = "known are " + strings.Join(sets.List(known), ", ")
	}
	_, err = fmt.Fprintf(output, "Warning: no configuration, group, instance or operator has the tenant %q; %s\n", tenant, others)
	return err
}

// knownTenants returns the tenants in the names and contents of all objects in the storage.
func knownTenants(ctx context.Context, store storage.Store) (sets.Set[string], error) {
	known := sets.New[string]()
	// Keys are "operator/TENANT.ID.json", "tenant/TENANT.json" and
	// "instance/SHARD/TENANT.ID.json".
	for _, prefix := range []string{storage.OperatorPrefix, "tenant/", "instance/"} {
		infos, err := store.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			name := info.Key[strings.LastIndex(info.Key, "/")+1:]
			tenant, _, _ := strings.Cut(name, ".")
			known.Insert(tenant)
		}
	}
	for prefix, path := range map[string]string{"config/": "groups", "accepted/": "groups", "groups/": ""} {
		infos, err := store.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			object, err := store.Get(ctx, info.Key)
			if err != nil {
				return nil, err
			}
			tenants, err := tenantsIn(object.Data, path)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", info.Key, err)
			}
			known.Insert(tenants...)
		}
	}
	return known, nil
}

// tenantsIn returns the tenants of groups in a configuration, in the field groups, or in an
// object with dynamic groups, at the top level, where other fields are no identifiers.
func tenantsIn(data []byte, groups string) (tenants []string, err error) {
	var mistakes field.ErrorList
	object, err := jsonc.Parse(data, &mistakes)
	if err != nil {
		return nil, err
	}
	if groups != "" {
		if !object.IsObject(groups) {
			return nil, nil
		}
		object = object.Object(groups)
	}
	return slices.DeleteFunc(object.Names(), func(name string) bool { return identifier.Validate(name) != nil }), nil
}
