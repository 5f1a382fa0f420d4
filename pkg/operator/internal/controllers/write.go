// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FieldManager owns every field that the operator writes.
const FieldManager = "nstance-operator"

// Apply are the options of every server-side apply. Force reverts changes by other
// writers: the operator owns each field that it applies.
var Apply = metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
