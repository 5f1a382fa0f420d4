// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxNote is the longest note of an event, in bytes. The API server refuses an
// event with a longer one.
const maxNote = 1024

// Warn records an event of type Warning about object. A note that is too long
// for an event is cut off.
func Warn(recorder events.EventRecorder, object runtime.Object, reason, action, note string) {
	recorder.Eventf(object, nil, corev1.EventTypeWarning, reason, action, "%s", shorten(note, maxNote))
}
