// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package notice polls the metadata service of a cloud for notices that it will terminate
// the machine.
package notice

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/retry"
)

// requestTimeout bounds one poll. The first response of a metadata service may take long.
const requestTimeout = 5 * time.Second

// Notice is the announcement of a termination.
type Notice struct {
	// Action is the action as the cloud names it, such as "terminate" or "Preempt".
	Action string
	// Deadline is the time of the action, zero if the cloud does not announce it.
	Deadline time.Time
}

// Source is the metadata service of a cloud.
type Source interface {
	// Poll returns the current notice, nil if there is no notice.
	Poll(ctx context.Context) (*Notice, error)
}

// New returns the metadata service of a provider at a base URL; the default is serviceURL.
// It returns nil for a provider that announces no terminations.
func New(provider, baseURL string) Source {
	service := newService(baseURL)
	switch provider {
	case "aws":
		return &aws{service: service}
	case "google":
		return &google{service: service}
	case "azure":
		return &azure{service: service}
	}
	return nil
}

// Poller polls a Source and keeps the latest notice. It is safe for concurrent use.
type Poller struct {
	source   Source
	interval time.Duration
	changed  func()

	mu     sync.Mutex
	notice *Notice
}

// NewPoller returns a poller of a source, which may be nil. It calls changed when a notice
// appears or changes.
func NewPoller(source Source, interval time.Duration, changed func()) *Poller {
	return &Poller{source: source, interval: interval, changed: changed}
}

// Notice returns the latest notice, nil before the first. A notice stays if a later poll
// returns nothing: clouds do not revoke notices, and a metadata service that restarts may
// not know them.
func (p *Poller) Notice() *Notice {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.notice
}

// Run polls until ctx is done.
func (p *Poller) Run(ctx context.Context) {
	if p.source == nil {
		return
	}
	var failures retry.Failures
	for ctx.Err() == nil {
		begin := time.Now()
		if err := p.poll(ctx); err == nil {
			failures = retry.Failures{}
		} else if ctx.Err() == nil {
			failures.Log(ctx, err, "Poll for termination notices")
		}
		retry.Wait(ctx, p.interval-time.Since(begin))
	}
}

func (p *Poller) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	notice, err := p.source.Poll(ctx)
	if err != nil {
		return fmt.Errorf("read the metadata service: %w", err)
	}
	if notice == nil {
		return nil
	}
	p.mu.Lock()
	isNew := p.notice == nil || p.notice.Action != notice.Action || !p.notice.Deadline.Equal(notice.Deadline)
	p.notice = notice
	p.mu.Unlock()
	if isNew {
		klog.FromContext(ctx).Info("Received a termination notice", "action", notice.Action, "deadline", notice.Deadline)
		p.changed()
	}
	return nil
}
