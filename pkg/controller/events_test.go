// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
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
	recorded := events.NewFakeRecorder(10)
	recorder := LimitEvents(recorded, clock)
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "one"}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "other"}}
	take := func() int {
		count := len(recorded.Events)
		for range count {
			<-recorded.Events
		}
		return count
	}
	for range 3 {
		Warn(recorder, one, "ProviderError", "Provide", "out of capacity")
		Warn(recorder, one, "ConfigRejected", "UpsertGroup", "no such template")
		Warn(recorder, other, "ProviderError", "Provide", "out of capacity")
	}
	if got := take(); got != 3 {
		t.Errorf("recorded %d events, want one per object and reason: 3", got)
	}
	clock.SetTime(clock.Now().Add(eventPeriod - time.Second))
	Warn(recorder, one, "ProviderError", "Provide", "something else")
	if got := take(); got != 0 {
		t.Errorf("recorded %d events before the period is over, want none", got)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	Warn(recorder, one, "ProviderError", "Provide", "out of capacity")
	if got := take(); got != 1 {
		t.Errorf("recorded %d events after the period, want 1", got)
	}
	if got := len(recorder.(*limitedRecorder).last); got != 1 {
		t.Errorf("%d events are remembered, want only those of the last period: 1", got)
	}
}

// Without the right to patch events, each must be a new object.
func TestRepeatedEventsAreCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
		require.NoError(t, broadcaster.StartRecordingToSinkWithContext(ctx))
		recorder := LimitEvents(broadcaster.NewRecorder(scheme.Scheme, "nstance-operator"), clock.RealClock{})
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shards", UID: "one"}}
		for end := time.Now().Add(2 * time.Hour); time.Now().Before(end); <-time.After(10 * time.Second) {
			Warn(recorder, object, "InvalidEndpoint", "Read", "no port")
		}
		synctest.Wait()
		count := 0
		for _, action := range client.Actions() {
			assert.Equal(t, "create", action.GetVerb())
			count++
		}
		assert.Equal(t, int(2*time.Hour/eventPeriod), count)
		cancel()
		broadcaster.Shutdown()
	})
}
