// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// GetCached returns the object of a namespaced lister under key, nil when there is
// none. kind names the object in an error.
func GetCached[T any](get func(name string) (*T, error), kind string, key cache.ObjectName) (*T, error) {
	object, err := get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s from the cache: %w", kind, key, err)
	}
	return object, nil
}
