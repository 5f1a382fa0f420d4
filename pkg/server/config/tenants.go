// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// For returns err as a tenant may see it: without the mistakes that concern only other
// tenants, of which it has the number. An error that wraps no *InvalidError is returned
// unchanged.
func For(tenant string, err error) error {
	invalid, ok := errors.AsType[*InvalidError](err)
	if !ok {
		return err
	}
	var own []error
	others := 0
	for _, mistake := range flatten(invalid.Mistakes) {
		if owner := tenantOf(mistake); owner == "" || owner == tenant {
			own = append(own, mistake)
		} else {
			others++
		}
	}
	if others == 0 {
		return err
	}
	own = append(own, fmt.Errorf("%d mistakes of other tenants", others))
	// What wraps the mistakes names the object only.
	prefix, _, _ := strings.Cut(err.Error(), invalid.Error())
	return &visibleError{prefix: prefix, invalid: &InvalidError{Mistakes: errors.Join(own...)}}
}

// visibleError is an *InvalidError with a prefix.
type visibleError struct {
	prefix  string
	invalid *InvalidError
}

func (e *visibleError) Error() string { return e.prefix + e.invalid.Error() }

func (e *visibleError) Unwrap() error { return e.invalid }

// TenantMistake is a mistake that concerns one tenant.
type TenantMistake struct {
	Tenant  string
	Mistake error
}

func (m *TenantMistake) Error() string { return m.Mistake.Error() }

func (m *TenantMistake) Unwrap() error { return m.Mistake }

// flatten returns the errors that were joined.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, flatten(one)...)
	}
	return all
}

// tenantOf returns the tenant that a mistake concerns, "" for all.
func tenantOf(mistake error) string {
	if of, ok := errors.AsType[*TenantMistake](mistake); ok {
		return of.Tenant
	}
	invalid, ok := errors.AsType[*field.Error](mistake)
	if !ok {
		return ""
	}
	path, found := strings.CutPrefix(invalid.Field, groupsField+".")
	if !found {
		return ""
	}
	tenant, _, _ := strings.Cut(path, ".")
	return tenant
}

// groupsField is the key of the static groups by tenant.
const groupsField = "groups"
