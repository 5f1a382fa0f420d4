// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package providerid decides whether the provider id that a shard server knows
// and the one on a Node name the same machine. Providers write them differently:
// a server may say i-0abc where the Node says aws:///us-west-2a/i-0abc.
package providerid

import "strings"

// Key is what equal provider ids have in common, however they are written: the
// text after the last slash. It is made for indexes; two ids with one key need
// not be equal, so ask Match.
func Key(id string) string {
	return id[strings.LastIndexByte(id, '/')+1:]
}

// Match tells whether two provider ids name the same machine. A scheme, and the
// path in front of the last segment, count only as far as both ids have them:
// us-west-2a/i-0abc matches aws:///us-west-2a/i-0abc and not
// aws:///us-west-2b/i-0abc.
func Match(a, b string) bool {
	if a == b {
		return a != ""
	}
	schemeA, pathA := split(a)
	schemeB, pathB := split(b)
	if schemeA != "" && schemeB != "" && schemeA != schemeB {
		return false
	}
	for i := 1; i <= len(pathA) && i <= len(pathB); i++ {
		if pathA[len(pathA)-i] != pathB[len(pathB)-i] {
			return false
		}
	}
	return len(pathA) > 0 && len(pathB) > 0
}

// split takes an id apart into its scheme, if any, and its path segments. A
// trailing slash leaves nothing to identify a machine by.
func split(id string) (scheme string, path []string) {
	scheme, rest, found := strings.Cut(id, "://")
	if !found {
		scheme, rest = "", id
	}
	if Key(rest) == "" {
		return scheme, nil
	}
	for segment := range strings.SplitSeq(rest, "/") {
		if segment != "" {
			path = append(path, segment)
		}
	}
	return scheme, path
}
