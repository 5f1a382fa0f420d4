// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/common/version"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/files"
	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/agent/notice"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// maxNotReady is the maximum length of the reason why a machine is not ready, in bytes
// (docs/protocol.md#extensions).
const maxNotReady = 200

// reports creates the health reports of one process. Only one goroutine creates them.
type reports struct {
	instanceID string
	identity   *identity.Identity
	files      *files.Store
	metrics    *collector
	// notice returns the latest termination notice, or nil.
	notice func() *notice.Notice
	// notReady returns why the machine is not ready, "" once it is.
	notReady func() string
	begin    time.Time
	count    atomic.Int64
}

// create creates the next report. If a part cannot be read, the report is sent without it:
// the server counts an agent without reports as lost.
func (r *reports) create(ctx context.Context) *nstancev1.HealthReportRequest {
	logger := klog.FromContext(ctx)
	now := time.Now()
	report := &nstancev1.HealthReportRequest{
		Version:    version.Version,
		InstanceId: r.instanceID,
		Timestamp:  timestamppb.New(now),
		Count:      r.count.Add(1),
		Uptime:     now.Sub(r.begin).Round(time.Second).String(),
		Metrics:    r.metrics.Collect(),
	}
	var err error
	if report.Files, err = r.files.Status(); err != nil {
		logger.Error(err, "Could not read the state of the files for a report")
	}
	hash, err := r.identity.ConfigHash()
	if err != nil {
		logger.Error(err, "Could not read the hash of the configuration for a report")
	}
	// A damaged file must not end the stream of reports.
	report.ConfigHash = validText(hash)
	report.NotReady = validText(r.notReady())
	if len(report.NotReady) > maxNotReady {
		report.NotReady = strings.ToValidUTF8(report.NotReady[:maxNotReady], "")
	}
	if n := r.notice(); n != nil {
		report.TerminationNotice = &nstancev1.TerminationNotice{Action: validText(n.Action)}
		if !n.Deadline.IsZero() {
			report.TerminationNotice.Deadline = timestamppb.New(n.Deadline)
		}
	}
	return report
}

// validText returns a text of the machine as a message may have it: a field of type string that
// is not UTF-8 cannot be sent (https://protobuf.dev/programming-guides/proto3/#scalar).
func validText(text string) string { return strings.ToValidUTF8(text, string(utf8.RuneError)) }

// hostname returns the configured name, or the name of the machine, which may have any bytes.
func hostname(configured string) string {
	if configured != "" {
		return validText(configured)
	}
	name, _ := os.Hostname()
	return validText(name)
}

// closeTimeout is how long the server has to confirm the reports of a stream that ends.
const closeTimeout = 2 * time.Second

// errEnded is reported if the server ended a stream without an error.
var errEnded = errors.New("the server ended the stream")

// reporter sends a report when a stream opens, at an interval, and after Trigger.
type reporter struct {
	// Sent is called after each report that was sent. Optional.
	Sent func()

	connection *identity.Connection
	interval   time.Duration
	create     func() *nstancev1.HealthReportRequest
	trigger    chan struct{}

	mu sync.Mutex
	// err is nil while reports are being sent.
	err error
}

// newReporter returns a reporter that calls create before each report.
func newReporter(conn *identity.Connection, interval time.Duration, create func() *nstancev1.HealthReportRequest) *reporter {
	return &reporter{
		connection: conn,
		interval:   interval,
		create:     create,
		trigger:    make(chan struct{}, 1),
		err:        errors.New("no report was sent yet"),
	}
}

// Trigger makes the reporter send a report now, or once it is connected. It does not block.
func (r *reporter) Trigger() {
	select {
	case r.trigger <- struct{}{}:
	default:
	}
}

// Check returns an error unless reports are being sent.
func (r *reporter) Check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Run sends reports until ctx is done. When the connection is replaced, a stream stays open
// until the next one has sent a report, so that the server does not see the machine
// disconnect. The first report of a stream repeats what a broken stream may have lost.
func (r *reporter) Run(ctx context.Context) {
	var previous *session
	retry.Loop(ctx, "Sending health reports", func(ctx context.Context) error {
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
func (r *reporter) open(ctx context.Context) (*session, error) {
	conn := r.connection.Acquire()
	// The stream outlives ctx once it is open, so that it can end with CloseSend.
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
func (r *reporter) report(ctx context.Context, s *session) error {
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

func (r *reporter) send(ctx context.Context, s *session) error {
	report := r.create()
	err := s.stream.Send(report)
	if errors.Is(err, io.EOF) {
		// Send returns io.EOF if the stream has ended; RecvMsg returns the reason
		// (https://pkg.go.dev/google.golang.org/grpc#ClientStream).
		return nil
	}
	klog.FromContext(ctx).V(4).Info("Sent a report", "count", report.GetCount(), "err", err)
	if err == nil && r.Sent != nil {
		r.Sent()
	}
	return err
}

// session is one stream of reports.
type session struct {
	conn   *identity.Conn
	stream grpc.ClientStreamingClient[nstancev1.HealthReportRequest, emptypb.Empty]
	cancel context.CancelFunc
	// ended receives the error that the stream ended with.
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
		klog.FromContext(ctx).V(4).Info("Ended a stream of reports", "reason", reason.Error())
	case <-timer.C:
	}
}

func (s *session) close() {
	s.cancel()
	s.conn.Release()
}

func (r *reporter) setState(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}
