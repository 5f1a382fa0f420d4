// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"strings"
	"unicode/utf8"
)

// ellipsis ends a text that was cut off.
const ellipsis = "…"

// shorten is text in at most limit bytes of valid UTF-8. Messages hold the words
// of shard servers, who may say anything; one that the API server refuses or
// changes would be written again and again.
func shorten(text string, limit int) string {
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
