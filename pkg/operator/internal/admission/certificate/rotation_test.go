// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"bytes"
	"crypto/tls"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

func TestServingCertificateIsReplacedBeforeExpiry(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	first, bundle := h.pair(), h.secret().Data["ca.crt"]
	due := h.sync()
	if want := (servingLifetime + clockSkew) / 3 * 2; due != want-clockSkew {
		t.Errorf("synced again after %s, want two thirds of %s", due, servingLifetime)
	}
	h.clock.SetTime(h.clock.Now().Add(due - time.Second))
	// A new process must observe the configuration for a while.
	h.restart()
	h.sync()
	h.clock.SetTime(h.clock.Now().Add(time.Second))
	if again := h.sync(); again != settlePeriod-time.Second {
		t.Errorf("synced again after %s", again)
	}
	h.clock.SetTime(h.clock.Now().Add(settlePeriod))
	h.sync(writeSecret)
	if bytes.Equal(h.pair().Leaf.Raw, first.Leaf.Raw) {
		t.Error("the certificate was not replaced")
	}
	if !bytes.Equal(h.secret().Data["ca.crt"], bundle) {
		t.Error("the authorities have changed")
	}
	// The API server trusts both, so a replica may serve either.
	h.expectCalled(host)
	if err := handshake(h.clock.Now(), bundle, first, host); err != nil {
		t.Errorf("the certificate before is not accepted any more: %v", err)
	}
}

// TestExpiredCertificateIsReplacedAtOnce because no client accepts it.
func TestExpiredCertificateIsReplacedAtOnce(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	h.clock.SetTime(h.clock.Now().Add(servingLifetime + time.Second))
	h.restart()
	h.sync(writeSecret)
	h.expectCalled(host)
}

func TestExpiredAuthorityIsReplacedAtOnce(t *testing.T) {
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	h.clock.SetTime(h.clock.Now().Add(authorityLifetime + time.Second))
	h.restart()
	h.sync(writeSecret, writeConfiguration)
	h.expectCalled(host)
	if authorities, err := cert.ParseCertsPEM(h.secret().Data["ca.crt"]); err != nil || len(authorities) != 1 {
		t.Errorf("%d authorities are trusted, error %v", len(authorities), err)
	}
}

// version is what was in force until it was replaced.
type version[T any] struct {
	value    T
	replaced time.Time
}

// recent returns the versions that a process which is lag behind may still have.
func recent[T any](versions []version[T], now time.Time, lag time.Duration) []T {
	var values []T
	for i, v := range versions {
		if i == len(versions)-1 || now.Sub(v.replaced) <= lag {
			values = append(values, v.value)
		}
	}
	return values
}

func record[T any](versions []version[T], value T, now time.Time, same func(a, b T) bool) []version[T] {
	if last := len(versions) - 1; last >= 0 {
		if same(versions[last].value, value) {
			return versions
		}
		versions[last].replaced = now
	}
	return append(versions, version[T]{value: value})
}

// TestNoCallEverFails: through fourteen years and several leaders every API server
// accepts every replica, though each may be minutes behind.
func TestNoCallEverFails(t *testing.T) {
	const (
		years = 14
		lag   = 5 * time.Minute
	)
	h := newHarness(t, installed())
	h.sync(writeSecret, writeConfiguration)
	var bundles []version[[]byte]
	var pairs []version[*tls.Certificate]
	end := h.clock.Now().AddDate(years, 0, 0)
	for steps := 0; h.clock.Now().Before(end); steps++ {
		if steps%7 == 0 {
			h.restart()
		}
		requeue, now := h.step(), h.clock.Now()
		if requeue <= 0 {
			t.Fatalf("%s: never looked at again", now)
		}
		bundles = record(bundles, h.configuration().Webhooks[0].ClientConfig.CABundle, now, bytes.Equal)
		pairs = record(pairs, h.pair(), now, func(a, b *tls.Certificate) bool { return bytes.Equal(a.Leaf.Raw, b.Leaf.Raw) })
		// Now, and just before something happens again.
		for _, at := range []time.Time{now, now.Add(requeue - time.Nanosecond)} {
			for _, bundle := range recent(bundles, at, lag) {
				for _, pair := range recent(pairs, at, lag) {
					if err := handshake(at, bundle, pair, host); err != nil {
						t.Fatalf("%s: a call fails: %v", at, err)
					}
				}
			}
		}
		h.clock.SetTime(now.Add(requeue))
	}
	// A new one every two thirds of ten years, and the expiry of the previous one.
	if len(bundles) != 4 {
		t.Errorf("the trusted authorities have changed %d times, want 3", len(bundles)-1)
	}
	if least := years * 365 / 61; len(pairs) < least {
		t.Errorf("%d certificates in %d years, want at least %d", len(pairs), years, least)
	}
}
