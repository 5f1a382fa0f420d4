// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DeleteByUID deletes object, and no newer one that has got its name: that is a
// conflict.
func DeleteByUID(object metav1.Object) metav1.DeleteOptions {
	return *metav1.NewPreconditionDeleteOptions(string(object.GetUID()))
}
