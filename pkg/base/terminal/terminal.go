// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package terminal keeps text of others, such as the error of an agent, from controlling the
// terminal of an administrator: with escape sequences it could hide lines, change the title, or type
// (CVE-2021-25743, https://github.com/kubernetes/kubernetes/issues/101695).
package terminal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer escapes what is not printable, except line breaks and tabs. The escapes are as in JSON
// (\u001b), so that JSON stays valid. kubectl only escapes the character ESC and the carriage return,
// but a terminal also obeys the control characters U+0080 to U+009F
// (https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).
type Writer struct {
	w io.Writer
	// rest is the beginning of a character, whose other bytes are in the next Write.
	rest []byte
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write implements io.Writer. Of an incomplete character it writes nothing until the next call.
func (w *Writer) Write(p []byte) (int, error) {
	text := slices.Concat(w.rest, p)
	end := complete(text)
	if _, err := io.WriteString(w.w, escape(string(text[:end]), "\n\t")); err != nil {
		return 0, err
	}
	w.rest = append([]byte(nil), text[end:]...)
	return len(p), nil
}

// complete returns the length of text without an incomplete character at its end.
func complete(text []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if begin := len(text) - i; utf8.RuneStart(text[begin]) {
			if !utf8.FullRune(text[begin:]) {
				return begin
			}
			break
		}
	}
	return len(text)
}

// Line returns text as a part of a line: line breaks and tabs become spaces, and what is not
// printable is escaped as by Writer.
func Line(text string) string {
	return escape(strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ").Replace(text), "")
}

// escape escapes what is neither printable nor in allowed.
func escape(text, allowed string) string {
	var escaped strings.Builder
	for i, size := 0, 0; i < len(text); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			escaped.WriteString(`\ufffd`)
		case unicode.IsPrint(r) || strings.ContainsRune(allowed, r):
			escaped.WriteString(text[i : i+size])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&escaped, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&escaped, `\u%04x`, r)
		}
	}
	return escaped.String()
}
