// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

func TestWarn(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	Warn(recorder, &corev1.ConfigMap{}, "Rejected", "UpsertGroup", "100% wrong")
	if got, want := <-recorder.Events, "Warning Rejected 100% wrong"; got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
	Warn(recorder, &corev1.ConfigMap{}, "Rejected", "UpsertGroup", strings.Repeat("x", 5000))
	if note := strings.TrimPrefix(<-recorder.Events, "Warning Rejected "); len(note) != maxNote {
		t.Errorf("recorded a note of %d bytes, want %d", len(note), maxNote)
	}
}

func TestSetConditionKeepsMessagesAcceptable(t *testing.T) {
	var conditions []metav1.Condition
	SetCondition(&conditions, 1, "Ready", metav1.ConditionFalse, "Rejected", strings.Repeat("ä", maxMessage))
	if got := len(conditions[0].Message); got > maxMessage {
		t.Errorf("a message of %d bytes was set", got)
	}
}

func TestShorten(t *testing.T) {
	for text, want := range map[string]string{
		"":              "",
		"fits":          "fits",
		"fits too":      "fits too",
		"is too long":   "is to…",
		"wörtlich zwei": "wört…",
		"broken\xff":    "broke…",
		"ok\xff":        "ok\uFFFD",
	} {
		got := shorten(text, 8)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("shorten(%q, 8) = %q, want %q", text, got, want)
		}
	}
}
