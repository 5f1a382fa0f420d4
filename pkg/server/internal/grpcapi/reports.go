// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// reportInterval is how often an agent may report for long, and reportBurst how many
	// reports it may send at once. Further ones are read later (docs/server.md#limits).
	reportInterval = 500 * time.Millisecond
	reportBurst    = 10
)

// SubmitHealthReport receives the reports of an agent until the agent closes the stream,
// opens another one, or the term is over. A report with the id of another instance closes
// the stream with PermissionDenied, as does the deletion of the instance.
func (s *AgentService) SubmitHealthReport(stream grpc.ClientStreamingServer[nstancev1.HealthReportRequest, emptypb.Empty]) error {
	ctx := stream.Context()
	i, err := s.admit(ctx)
	if err != nil {
		return err
	}
	session := s.Health.Connect(&i.Record)
	defer session.Close()
	klog.FromContext(ctx).V(2).Info("An agent has connected", "instance", i.ID)
	limiter := rate.NewLimiter(rate.Every(reportInterval), reportBurst)
	reports := messagesOf(stream)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-session.Replaced():
			return errReplaced
		case report := <-reports:
			if errors.Is(report.err, io.EOF) {
				return stream.SendAndClose(&emptypb.Empty{})
			}
			if report.err != nil {
				return report.err
			}
			if err := checkInstanceID(ctx, report.message.GetInstanceId()); err != nil {
				return err
			}
			if _, err := s.admit(ctx); err != nil {
				return err
			}
			session.Report(report.message)
			s.Files.Reported(i.ID, report.message)
			if err := limiter.Wait(ctx); err != nil {
				return err
			}
		}
	}
}
