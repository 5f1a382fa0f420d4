// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RemoveFinalizer is the JSON patch that takes finalizer off object, nil when it
// has none. It fails on an object that is another one, or whose finalizers have
// changed meanwhile.
func RemoveFinalizer(object metav1.Object, finalizer string) ([]byte, error) {
	at := slices.Index(object.GetFinalizers(), finalizer)
	if at < 0 {
		return nil, nil
	}
	path := fmt.Sprintf("/metadata/finalizers/%d", at)
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": object.GetUID()},
		{"op": "test", "path": path, "value": finalizer},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the patch that removes finalizer %s of %s/%s: %w",
			finalizer, object.GetNamespace(), object.GetName(), err)
	}
	return patch, nil
}
