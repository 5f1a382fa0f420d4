// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package report sends the health reports of an agent.
package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/connection"
	"nstance.dev/operator/pkg/agent/retry"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// closeTimeout is how long the server has to confirm the reports of a stream that ends.
const closeTimeout = 2 * time.Second

// errEnded is the error of a stream that the server ended without one.
var errEnded = errors.New("the server ended the stream")

// Reporter sends a report when it is connected, at an interval, and when something changed.
type Reporter struct {
	// Sent is called after each report that was sent. Optional.
	Sent func()

	connection *connection.Connection
	interval   time.Duration
	create     func() *nstancev1.HealthReportRequest
	trigger    chan struct{}

	mu sync.Mutex
	// err is nil while reports are being sent.
	err error
}

// New returns a reporter. create creates a report.
func New(conn *connection.Connection, interval time.Duration, create func() *nstancev1.HealthReportRequest) *Reporter {
	return &Reporter{
		connection: conn,
		interval:   interval,
		create:     create,
		trigger:    make(chan struct{}, 1),
		err:        errors.New("no report was sent yet"),
	}
}

// Trigger makes the reporter send a report now, or once it is connected. It does not block.
func (r *Reporter) Trigger() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}

// Check returns an error unless reports are being sent.
func (r *Reporter) Check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Run sends reports until ctx is done. When the connection is replaced, a stream stays open
// until the next one has sent a report, so that the server does not see the machine
// disconnect. What a broken stream may have lost is in the first report of the next one.
func (r *Reporter) Run(ctx context.Context) {
	var previous *session
	retry.Loop(ctx, "health reports", func(ctx context.Context) error {
		s, err := r.open(ctx)
		if previous != nil {
			previous.finish(ctx)
			previous = nil
		}
		if err != nil {
			r.setState(fmt.Errorf("no stream of reports: %w", err))
			return err
		}
		r.setState(nil)
		if err = r.report(ctx, s); errors.Is(err, retry.ErrAgain) {
			previous = s
			return err
		}
		s.finish(ctx)
		r.setState(fmt.Errorf("the stream of reports ended: %w", err))
		return err
	})
	if previous != nil {
		previous.finish(ctx)
	}
}

// open opens a stream and sends a report.
func (r *Reporter) open(ctx context.Context) (*session, error) {
	conn := r.connection.Acquire()
	// Once it is open, the stream outlives ctx for its regular end.
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, cancel)()
	s := &session{conn: conn, cancel: cancel, ended: make(chan error, 1)}
	var err error
	if s.stream, err = conn.SubmitHealthReport(streaming); err != nil {
		s.close()
		return nil, err
	}
	go func() {
		err := s.stream.RecvMsg(&emptypb.Empty{})
		if err == nil || errors.Is(err, io.EOF) {
			err = errEnded
		}
		s.ended <- err
	}()
	if err := r.send(ctx, s); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// report sends further reports, until the stream has ended, its connection is replaced, or
// ctx is done.
func (r *Reporter) report(ctx context.Context, s *session) error {
	ticker := time.NewTicker(r.interval)
	defer ticker.Stop()
	for {
		select {
		case err := <-s.ended:
			s.ended <- err
			return err
		case <-s.conn.Replaced():
			return retry.ErrAgain
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case <-r.trigger:
		}
		if err := r.send(ctx, s); err != nil {
			return err
		}
	}
}

func (r *Reporter) send(ctx context.Context, s *session) error {
	report := r.create()
	err := s.stream.Send(report)
	if errors.Is(err, io.EOF) {
		// The stream has ended, with an error that is about to arrive.
		return nil
	}
	klog.FromContext(ctx).V(4).Info("sent a report", "count", report.GetCount(), "err", err)
	if err == nil && r.Sent != nil {
		r.Sent()
	}
	return err
}

// session is one stream of reports.
type session struct {
	conn   *connection.Conn
	stream grpc.ClientStreamingClient[nstancev1.HealthReportRequest, emptypb.Empty]
	cancel context.CancelFunc
	// ended receives why the stream has ended.
	ended chan error
}

// finish ends the stream, waits until the server has received all reports, and releases
// the connection.
func (s *session) finish(ctx context.Context) {
	defer s.close()
	if s.stream.CloseSend() != nil {
		return
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case reason := <-s.ended:
		klog.FromContext(ctx).V(4).Info("ended a stream of reports", "reason", reason.Error())
	case <-timer.C:
	}
}

func (s *session) close() {
	s.cancel()
	s.conn.Release()
}

func (r *Reporter) setState(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}
