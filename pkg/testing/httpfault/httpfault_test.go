// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package httpfault

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

func all(*Fault) bool { return true }

// TestSkipAndTimes: only the selected requests get the fault, and Before decides whether they
// have an effect.
func TestSkipAndTimes(t *testing.T) {
	for _, before := range []bool{false, true} {
		var f Faults
		fault := &Fault{Skip: 1, Times: 2, Before: before, Status: http.StatusBadGateway}
		f.SetFaults(fault)
		effects, faults := 0, 0
		for range 5 {
			if f.Inject(httptest.NewRequest(http.MethodGet, "/", nil), all, func() { effects++ }) != nil {
				faults++
			}
		}
		assert.Equal(t, 2, faults)
		assert.Equal(t, map[bool]int{false: 5, true: 3}[before], effects, "before %t", before)
		assert.Equal(t, 3, f.Seen(fault))
	}
}

// TestNoResponse: a request without a response is aborted, at once, when the client gives up, or
// when the faults are replaced.
func TestNoResponse(t *testing.T) {
	var f Faults
	f.SetFaults(&Fault{Times: 1})
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { f.Inject(request, all, func() {}) })
	assert.Nil(t, f.Inject(request, all, func() {}))
	for name, end := range map[string]func(f *Faults, cancel func()){
		"the client gives up": func(_ *Faults, cancel func()) { cancel() },
		"the faults end":      func(f *Faults, _ func()) { f.SetFaults() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f Faults
				f.SetFaults(&Fault{Hang: true, Status: http.StatusOK})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				aborted := false
				go func() {
					defer func() {
						err, _ := recover().(error)
						aborted = errors.Is(err, http.ErrAbortHandler)
					}()
					f.Inject(request.WithContext(ctx), all, func() {})
				}()
				synctest.Wait()
				assert.False(t, aborted)
				end(&f, cancel)
				synctest.Wait()
				assert.True(t, aborted)
			})
		})
	}
}
