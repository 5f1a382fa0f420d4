// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"strings"
	"unicode/utf8"
)

// ellipsis is the end of a text that was cut off.
const ellipsis = "…"

// truncate returns text in at most limit bytes of valid UTF-8. Messages contain text of
// shard servers, which is not validated; one that the API server rejects or changes
// would be written again and again.
func truncate(text string, limit int) string {
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
