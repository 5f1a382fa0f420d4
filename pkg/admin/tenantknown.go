// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

// warnOfNewTenant writes a warning if the storage has nothing of a tenant: its name may be
// misspelled, and an operator with that nonce would see no groups. A tenant without static
// groups is new until its operator has registered, so this is not an error, and it is usual
// for the default tenant of a new cluster.
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

// knownTenants returns the tenants of all objects in the storage.
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

// tenantsIn returns the tenants of a configuration, whose groups are in a field, or of an
// object with dynamic groups, which has them at the top beside fields of other names.
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
