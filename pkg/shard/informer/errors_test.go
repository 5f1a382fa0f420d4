// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestErrorsAreHandedOnInOrder(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, told func() []string) {
		// A handler without the function is none of the peer's business.
		g.AddHandler(Handler{})
		told()
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "out of capacity"}
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "out of capacity"}
		p.errors <- &nstancev1.ErrorEvent{Error: "the configuration is not valid"}
		want := []string{
			`a says "out of capacity" of group "workers"`,
			`a says "out of capacity" of group "workers"`,
			`a says "the configuration is not valid" of group ""`,
		}
		if got := told(); !slices.Equal(got, want) {
			t.Errorf("told\n%q, want\n%q", got, want)
		}
	})
}

func TestWatchOfErrorsIsOpenedAgain(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, told func() []string) {
		told()
		p.errors <- nil
		<-time.After(time.Second)
		p.errors <- &nstancev1.ErrorEvent{Error: "heard"}
		if got, want := told(), []string{`a says "heard" of group ""`}; !slices.Equal(got, want) {
			t.Errorf("told of %q, want %q", got, want)
		}
		p.change(func() {
			if p.errorWatches != 2 || p.watches != 1 {
				t.Errorf("%d watches of errors and %d of groups, want 2 and 1", p.errorWatches, p.watches)
			}
		})
		if ok, err := g.Reachable("a"); !ok || err != nil {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
	})
}

func TestServerThatReportsNoErrorsIsAskedRarely(t *testing.T) {
	p := &peer{errorsRefusal: status.Error(codes.Unimplemented, "method WatchErrors not implemented")}
	withPeer(t, p, func(t *testing.T, g *Groups, told func() []string) {
		expectInOrder := func(when string) {
			t.Helper()
			synctest.Wait()
			if ok, err := g.Reachable("a"); !ok || err != nil || !g.HasSynced("a") {
				t.Errorf("%s: reachable %t, reason %v, synced %t", when, ok, err, g.HasSynced("a"))
			}
		}
		expectInOrder("at first")
		told()
		<-time.After(time.Hour)
		expectInOrder("after an hour")
		if got := told(); got != nil {
			t.Errorf("told of %q", got)
		}
		p.change(func() {
			if p.errorWatches < 12 || p.errorWatches > 13 {
				t.Errorf("asked %d times in an hour, want once in 5 minutes", p.errorWatches)
			}
			p.errorsRefusal = nil
		})
		// The server was replaced by one that does report.
		<-time.After(5 * time.Minute)
		p.errors <- &nstancev1.ErrorEvent{Error: "heard"}
		if got, want := told(), []string{`a says "heard" of group ""`}; !slices.Equal(got, want) {
			t.Errorf("told of %q, want %q", got, want)
		}
	})
}

func TestRefusedWatchOfErrorsIsTriedWithGrowingWaits(t *testing.T) {
	p := &peer{errorsRefusal: status.Error(codes.PermissionDenied, "not for operators")}
	withPeer(t, p, func(t *testing.T, g *Groups, told func() []string) {
		told()
		<-time.After(10 * time.Minute)
		p.change(func() {
			if p.errorWatches < 20 || p.errorWatches > 100 {
				t.Errorf("%d watches of errors in 10 minutes", p.errorWatches)
			}
		})
		if ok, err := g.Reachable("a"); !ok || err != nil {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
		if got := told(); got != nil {
			t.Errorf("told of %q", got)
		}
	})
}
