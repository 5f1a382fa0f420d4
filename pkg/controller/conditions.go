// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessage is the longest message of a condition that the CRDs allow.
const maxMessage = 32768

// SetCondition sets one condition of a status that was computed from generation.
// Its transition time changes only when its status does.
func SetCondition(conditions *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		Message:            Truncate(message, maxMessage),
		ObservedGeneration: generation,
	})
}

// TurnedFalse returns the condition of type kind if it is False in after, for another reason
// than in before, and nil otherwise. The transition is worth an event; the same problem a
// second time is not.
func TurnedFalse(before, after []metav1.Condition, kind string) *metav1.Condition {
	now := meta.FindStatusCondition(after, kind)
	if now == nil || now.Status != metav1.ConditionFalse {
		return nil
	}
	was := meta.FindStatusCondition(before, kind)
	if was != nil && was.Status == metav1.ConditionFalse && was.Reason == now.Reason {
		return nil
	}
	return now
}

// ellipsis marks where a text was cut off.
const ellipsis = "…"

// Truncate returns text in at most limit bytes of valid UTF-8. Messages contain unvalidated
// text from shard servers. If the API server rejected or changed a message, it would be
// written again at each sync.
func Truncate(text string, limit int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= limit {
		return text
	}
	cut := limit - len(ellipsis)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}
