// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
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
		got := Truncate(text, 8)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("Truncate(%q, 8) = %q, want %q", text, got, want)
		}
	}
}

func TestLimitEvents(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	recorded := events.NewFakeRecorder(10)
	recorder := LimitEvents(recorded, clock)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "one"}}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "other"}}
	take := func() int {
		count := len(recorded.Events)
		for range count {
			<-recorded.Events
		}
		return count
	}
	for range 3 {
		Warn(recorder, configMap, "ProviderError", "Provide", "out of capacity")
		Warn(recorder, configMap, "ConfigRejected", "UpsertGroup", "no such template")
		Warn(recorder, other, "ProviderError", "Provide", "out of capacity")
	}
	if got := take(); got != 3 {
		t.Errorf("recorded %d events, want one per object and reason: 3", got)
	}
	for _, version := range []string{"1", "2"} {
		scaled := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "one", ResourceVersion: version}}
		for range 3 {
			for _, related := range []string{"a", "b"} {
				recorder.Eventf(scaled, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: related}}, corev1.EventTypeNormal, "Scaled", "Scale", "scaled")
			}
		}
		if got := take(); got != 2 {
			t.Errorf("recorded %d events of version %s, want one per related object: 2", got, version)
		}
	}
	clock.SetTime(clock.Now().Add(eventPeriod - time.Second))
	Warn(recorder, configMap, "ProviderError", "Provide", "something else")
	if got := take(); got != 0 {
		t.Errorf("recorded %d events before the period is over, want none", got)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	Warn(recorder, configMap, "ProviderError", "Provide", "out of capacity")
	if got := take(); got != 1 {
		t.Errorf("recorded %d events after the period, want 1", got)
	}
	clock.SetTime(clock.Now().Add(sweepPeriod))
	Warn(recorder, configMap, "ProviderError", "Provide", "out of capacity")
	if got := len(recorder.(*limitedRecorder).last); got != 1 {
		t.Errorf("%d events are remembered, want only those of the last period: 1", got)
	}
}

// A second change of a pool is recorded although the first was recorded just before.
// The shards share an object: an event about a shard does not hide the next one. Their number is
// bounded.
func TestWarningsAboutPartsDoNotHideEachOther(t *testing.T) {
	recorded := events.NewFakeRecorder(10 * maxParts)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	recorder := LimitEvents(recorded, clock)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "shards"}}
	for periods := range 3 {
		for range 2 {
			for part := range 3 * maxParts {
				WarnAbout(recorder, configMap, fmt.Sprint(periods, part), "ShardError", "Watch", "failed")
			}
			Warn(recorder, configMap, "Other", "Watch", "failed")
		}
		assert.Len(t, recorded.Events, (maxParts+2)*(periods+1), "one of each part, one of all further parts, and the other reason")
		clock.SetTime(clock.Now().Add(eventPeriod))
	}
	assert.Len(t, recorder.(*limitedRecorder).parts, 1)
}

func TestLimitNormalEvents(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	recorded := events.NewFakeRecorder(100)
	recorder := LimitEvents(recorded, clock)
	take := func() []string {
		var notes []string
		for range len(recorded.Events) {
			notes = append(notes, <-recorded.Events)
		}
		return notes
	}
	pool := func(version string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "one", ResourceVersion: version}}
	}
	Record(recorder, pool("1"), "Scaled", "Scale", "from 9 to 12")
	Record(recorder, pool("2"), "Scaled", "Scale", "from 12 to 15")
	Record(recorder, pool("2"), "Scaled", "Scale", "from 12 to 15, again")
	Record(recorder, pool("2"), "Imported", "Import", "3 shards")
	Warn(recorder, pool("2"), "Scaled", "Scale", "a warning of the same reason")
	assert.Equal(t, []string{"Normal Scaled from 9 to 12", "Normal Scaled from 12 to 15", "Normal Imported 3 shards",
		"Warning Scaled a warning of the same reason"}, take())

	clock.SetTime(clock.Now().Add(time.Minute))
	for i := range 100 {
		Record(recorder, pool(strconv.Itoa(10+i)), "Scaled", "Scale", "often")
	}
	assert.Len(t, take(), maxNormal-2)
	clock.SetTime(clock.Now().Add(eventPeriod - time.Minute))
	Record(recorder, pool("1"), "Scaled", "Scale", "two of them are over")
	Record(recorder, pool("2"), "Scaled", "Scale", "two of them are over")
	Record(recorder, pool("3"), "Scaled", "Scale", "two of them are over")
	assert.Len(t, take(), 2)
	clock.SetTime(clock.Now().Add(eventPeriod))
	Record(recorder, pool("4"), "Imported", "Import", "3 shards")
	assert.Len(t, take(), 1)
	assert.Len(t, recorder.(*limitedRecorder).last, 1, "only the events of one period are remembered")
}

// Without permission to patch events, each event must be a new object.
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

// Two changes within minutes are recorded as two events.
func TestNormalEventsOfOneObjectAreCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
		require.NoError(t, broadcaster.StartRecordingToSinkWithContext(ctx))
		recorder := LimitEvents(broadcaster.NewRecorder(scheme.Scheme, "nstance-operator"), clock.RealClock{})
		for i, note := range []string{"from 9 to 12", "from 12 to 15", "from 15 to 9"} {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "workers", UID: "one", ResourceVersion: strconv.Itoa(i)}}
			Record(recorder, object, "Scaled", "Scale", note)
			<-time.After(time.Minute)
		}
		synctest.Wait()
		var notes []string
		for _, action := range client.Actions() {
			assert.Equal(t, "create", action.GetVerb())
			notes = append(notes, action.(clienttesting.CreateAction).GetObject().(*eventsv1.Event).Note)
		}
		assert.Equal(t, []string{"from 9 to 12", "from 12 to 15", "from 15 to 9"}, notes)
		cancel()
		broadcaster.Shutdown()
	})
}
