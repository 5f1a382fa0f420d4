// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
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
		got := truncate(text, 8)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("truncate(%q, 8) = %q, want %q", text, got, want)
		}
	}
}

func TestLimitEvents(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	fake := events.NewFakeRecorder(10)
	recorder := LimitEvents(fake, clock)
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "one"}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "other"}}
	recorded := func() int {
		count := len(fake.Events)
		for range count {
			<-fake.Events
		}
		return count
	}
	for range 3 {
		Warn(recorder, one, "ProviderError", "Provide", "out of capacity")
		Warn(recorder, one, "ConfigRejected", "UpsertGroup", "no such template")
		Warn(recorder, other, "ProviderError", "Provide", "out of capacity")
	}
	if got := recorded(); got != 3 {
		t.Errorf("recorded %d events, want one per object and reason: 3", got)
	}
	clock.SetTime(clock.Now().Add(eventPeriod - time.Second))
	Warn(recorder, one, "ProviderError", "Provide", "something else")
	if got := recorded(); got != 0 {
		t.Errorf("recorded %d events before the period is over, want none", got)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	Warn(recorder, one, "ProviderError", "Provide", "out of capacity")
	if got := recorded(); got != 1 {
		t.Errorf("recorded %d events after the period, want 1", got)
	}
	if got := len(recorder.(*limitedRecorder).last); got != 1 {
		t.Errorf("%d events are remembered, want only those of the last period: 1", got)
	}
}
