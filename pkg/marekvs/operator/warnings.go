// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"sync"

	"k8s.io/klog/v2"
)

// maxWarnings is how many different warnings are logged.
const maxWarnings = 100

// warnings logs each warning of the API server once. A newer one warns at every write of a
// Service that its traffic distribution has another name, which older ones do not know.
type warnings struct {
	mu     sync.Mutex
	logged map[string]bool
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if w.first(code, text) {
		klog.FromContext(ctx).Info("The API server warned", "warning", text)
	}
}

// first reports whether a warning is a new one.
func (w *warnings) first(code int, text string) bool {
	// The only code that is defined.
	if code != 299 || text == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.logged[text] || len(w.logged) >= maxWarnings {
		return false
	}
	if w.logged == nil {
		w.logged = map[string]bool{}
	}
	w.logged[text] = true
	return true
}
