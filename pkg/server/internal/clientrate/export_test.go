// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientrate

// Known returns the number of clients that are known.
func Known(l *Limits) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byClient)
}
