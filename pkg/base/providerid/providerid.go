// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package providerid compares the provider id that a shard server reports with the provider
// id of a Node. Providers write them differently: the server may report i-0abc and the Node
// have aws:///us-west-2a/i-0abc.
package providerid

import "strings"

// Key returns the common part of matching provider ids in any notation: the text
// after the last slash. It is an index key; ids with the same key need not match, so
// call Match too.
func Key(id string) string {
	return id[strings.LastIndexByte(id, '/')+1:]
}

// Match reports whether two provider ids name the same VM. The scheme and the path
// before the last segment are compared only as far as both ids have them:
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

// split splits an id into its scheme, if any, and its path segments. An id with a
// trailing slash identifies no VM.
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
