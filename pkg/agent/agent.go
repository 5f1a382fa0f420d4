// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agent is the program that runs on each machine of a group: it registers the
// instance, reports its health, creates keys and receives files (docs/agent.md).
package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/files"
	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/agent/notice"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// procFolder is the proc file system of the kernel
// (https://docs.kernel.org/filesystems/proc.html).
const procFolder = "/proc"

// Run runs the agent until ctx is done. It returns an error only if the options or the
// folders cannot be used. Errors of servers never end it: it retries.
func Run(ctx context.Context, o *Options) error {
	begin := time.Now()
	logger := klog.FromContext(ctx).WithValues("instance", o.InstanceID)
	ctx = klog.NewContext(ctx, logger)
	id, err := identity.Open(o.IdentityFolder, o.IdentityMode.FileMode(), o.InstanceID)
	if err != nil {
		return fmt.Errorf("open the identity: %w", err)
	}
	id.ServerURI = o.ServerURI
	exporter := newExporter(id)
	health := &health{metrics: exporter.handler()}
	if err := health.serve(ctx, o.HealthAddress); err != nil {
		return err
	}
	store, err := files.Open(o.ReceiveFolder, o.ReceiveMode.FileMode(), id)
	if err != nil {
		return fmt.Errorf("open the received files: %w", err)
	}
	if err := store.Recover(); err != nil {
		logger.Error(err, "Could not recover the last patch of files; the next patch replaces it")
	}
	keys, err := files.OpenKeys(o.KeysFolder, o.KeysMode.FileMode())
	if err != nil {
		return fmt.Errorf("open the keys: %w", err)
	}
	collector, err := newCollector(procFolder, o.MetricsInterface, o.EBPFCountersPath != "")
	if err != nil {
		return err
	}
	logger.Info("Starting", "environment", o.Environment, "kind", o.InstanceKind, "fqdn", o.InstanceFQDN, "provider", o.Provider)

	registration := &identity.Registration{
		Address:  o.RegistrationAddress,
		Identity: id,
		IPv4:     o.InstanceIPv4,
		IPv6:     o.InstanceIPv6,
		Hostname: hostname(o.InstanceHostname),
	}
	if source := notice.NewIdentitySource(o.Provider, o.MetadataURL); source != nil {
		registration.SignedIdentity = source.SignedIdentity
	}
	if registration.Run(ctx) != nil {
		return nil // ctx is done
	}
	conn, err := identity.NewConnection(o.AgentAddress, id.Credentials)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	ready, err := newReadiness(o.ReadyFile, o.ReadyURL, id)
	if err != nil {
		return err
	}
	var poller *notice.Poller
	reports := &reports{
		instanceID: o.InstanceID,
		identity:   id,
		files:      store,
		metrics:    collector,
		notice:     func() *notice.Notice { return poller.Notice() },
		notReady:   ready.Reason,
		begin:      begin,
	}
	reporter := newReporter(conn, o.ReportInterval, func() *nstancev1.HealthReportRequest { return reports.create(ctx) })
	reporter.Sent = exporter.sent
	poller = notice.NewPoller(source(logger, o), o.SpotPollInterval, func() {
		exporter.notice.Set(1)
		reporter.Trigger()
	})
	run := []func(context.Context){
		(&identity.Renewal{Identity: id, Connection: conn, Registration: registration}).Run,
		(&files.KeyCreator{Connection: conn, Store: keys, InstanceID: o.InstanceID}).Run,
		(&files.Receiver{Connection: conn, Store: store, Changed: reporter.Trigger, Applied: exporter.patched}).Run,
		poller.Run,
		func(ctx context.Context) { ready.Run(ctx, reporter.Trigger) },
	}
	if o.ReportInterval > 0 {
		run = append(run, reporter.Run)
		health.setReady(reporter.Check)
	} else {
		health.setReady(func() error { return nil })
	}
	var running sync.WaitGroup
	for _, run := range run {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
	return nil
}

// source returns the metadata service of the provider, nil if the provider announces
// nothing.
func source(logger klog.Logger, o *Options) notice.Source {
	source := notice.New(o.Provider, o.MetadataURL)
	if source == nil {
		logger.V(2).Info("The provider announces no terminations", "provider", o.Provider)
	}
	return source
}
