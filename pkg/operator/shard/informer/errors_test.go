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

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestHandlersReceiveErrorsInOrder(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		// A handler without OnError is ignored.
		g.AddHandler(shard.GroupHandler{})
		handled()
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "out of capacity"}
		p.errors <- &nstancev1.ErrorEvent{Group: "workers", Error: "out of capacity"}
		p.errors <- &nstancev1.ErrorEvent{Error: "the configuration is not valid"}
		want := []string{
			`a reports "out of capacity" of group "workers"`,
			`a reports "out of capacity" of group "workers"`,
			`a reports "the configuration is not valid" of group ""`,
		}
		if got := handled(); !slices.Equal(got, want) {
			t.Errorf("handled\n%q, want\n%q", got, want)
		}
	})
}

func TestWatchOfErrorsIsOpenedAgain(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		handled()
		p.errors <- nil
		<-time.After(time.Second)
		p.errors <- &nstancev1.ErrorEvent{Error: "received"}
		if got, want := handled(), []string{`a reports "received" of group ""`}; !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q", got, want)
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

func TestUnimplementedWatchOfErrorsIsRetriedRarely(t *testing.T) {
	p := &peer{errorsErr: status.Error(codes.Unimplemented, "method WatchErrors not implemented")}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		expectReachable := func(when string) {
			t.Helper()
			synctest.Wait()
			if ok, err := g.Reachable("a"); !ok || err != nil || !g.HasSynced("a") {
				t.Errorf("%s: reachable %t, reason %v, synced %t", when, ok, err, g.HasSynced("a"))
			}
		}
		expectReachable("at first")
		handled()
		<-time.After(time.Hour)
		expectReachable("after an hour")
		if got := handled(); got != nil {
			t.Errorf("handled %q", got)
		}
		p.change(func() {
			if p.errorWatches < 12 || p.errorWatches > 13 {
				t.Errorf("%d watches of errors in an hour, want one every 5 minutes", p.errorWatches)
			}
			p.errorsErr = nil
		})
		// The server was replaced by one that implements it.
		<-time.After(5 * time.Minute)
		p.errors <- &nstancev1.ErrorEvent{Error: "received"}
		if got, want := handled(), []string{`a reports "received" of group ""`}; !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q", got, want)
		}
	})
}

func TestRejectedWatchOfErrorsIsRetriedWithBackoff(t *testing.T) {
	p := &peer{errorsErr: status.Error(codes.PermissionDenied, "not for operators")}
	withPeer(t, p, func(t *testing.T, g *Groups, handled func() []string) {
		handled()
		<-time.After(10 * time.Minute)
		p.change(func() {
			if p.errorWatches < 20 || p.errorWatches > 100 {
				t.Errorf("%d watches of errors in 10 minutes", p.errorWatches)
			}
		})
		if ok, err := g.Reachable("a"); !ok || err != nil {
			t.Errorf("reachable %t, reason %v", ok, err)
		}
		if got := handled(); got != nil {
			t.Errorf("handled %q", got)
		}
	})
}
