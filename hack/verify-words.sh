#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Checks the words of Go comments and names: pronouns instead of nouns make a comment hard to
# read. "that of", "those of" and "is what", "are what" may stand twice in 1,000 lines of
# comments, and no variable is named "one".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard 'pkg/*.go' 'cmd/*.go' 'hack/*.go' 'e2e/*.go' |
	grep -vE '^pkg/generated/|\.pb\.go$')
awk -v budget=2 '
# found counts a place, which is printed if the check fails.
function found(rule) {
	count[rule]++
	places[rule] = places[rule] FILENAME ":" FNR ":" $0 "\n"
}
# code returns a line without its strings and comment. raw is true within a raw string.
function code(line,    c, i, quote, text) {
	quote = raw ? "`" : ""
	for (i = 1; i <= length(line); i++) {
		c = substr(line, i, 1)
		if (quote == "" && substr(line, i, 2) == "//")
			break
		if (quote == "") {
			if (c == "\"" || c == "`" || c == "\047")
				quote = c
			else
				text = text c
		} else if (c == "\\" && quote != "`")
			i++
		else if (c == quote)
			quote = ""
	}
	raw = quote == "`"
	return text
}
function exceeds(rule, limit) {
	if (count[rule] <= limit)
		return 0
	printf "%s%s: %d in %d lines of comments, at most %d are allowed\n", places[rule], rule, count[rule], lines, limit
	return 1
}
BEGIN {
	that = "\"that of\" or \"those of\""
	what = "\"is what\" or \"are what\""
	one = "a variable named \"one\""
}
FNR == 1 { raw = 0 }
!raw && /^[ \t]*\/\// {
	if (/^[ \t]*\/\/(go:|nolint)/)
		next
	lines++
	if (/(that|those) of/)
		found(that)
	if (/(is|are) what/)
		found(what)
	next
}
raw || /`/ || /one/ {
	if (code($0) ~ /(^|[^A-Za-z0-9_])one([^A-Za-z0-9_]|$)/)
		found(one)
}
END { exit exceeds(that, budget * lines / 1000) + exceeds(what, budget * lines / 1000) + exceeds(one, 0) > 0 }
' "${files[@]}" >&2
