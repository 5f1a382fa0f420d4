// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/connection"
	"nstance.dev/operator/pkg/agent/retry"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// maxMessageBytes is more than a file may have, so that the reason for a refusal of a file
// can be reported.
const maxMessageBytes = 2 * maxFileBytes

// Receiver receives patches and applies them.
type Receiver struct {
	Connection *connection.Connection
	Store      *Store
	// Changed is called when a patch changed the hash of the configuration or the errors.
	Changed func()
	// Applied is called after each patch, with the error if it was refused or failed.
	// Optional.
	Applied func(error)
}

// Run receives patches until ctx is done.
func (r *Receiver) Run(ctx context.Context) {
	retry.Loop(ctx, "receiving files", r.receive)
}

// receive receives patches from one stream. A patch that the stream ends in is discarded.
func (r *Receiver) receive(ctx context.Context) error {
	conn := r.Connection.Acquire()
	defer conn.Release()
	ctx, cancel := conn.UntilReplaced(ctx)
	defer cancel()
	stream, err := conn.ReceiveFiles(ctx, &emptypb.Empty{}, grpc.MaxCallRecvMsgSize(maxMessageBytes))
	if err != nil {
		return connection.StreamError(ctx, err)
	}
	var patch Patch
	for {
		transfer, err := stream.Recv()
		if err != nil {
			if patch.Len() > 0 {
				err = fmt.Errorf("discard a patch of %d files that is not complete: %w", patch.Len(), err)
			}
			return connection.StreamError(ctx, err)
		}
		if transfer.GetFilename() != "" {
			patch.Add(transfer)
			continue
		}
		r.apply(ctx, &patch, transfer)
		patch = Patch{}
	}
}

// apply applies a patch that the closing message has ended.
func (r *Receiver) apply(ctx context.Context, patch *Patch, closing *nstancev1.FileTransfer) {
	logger := klog.FromContext(ctx)
	hash := closing.GetConfigHash()
	if hash == "" {
		logger.Error(nil, "the server ended a patch without a hash, it is discarded", "files", patch.Len())
		return
	}
	patch.Complete = closing.GetComplete()
	changed, err := r.Store.Apply(patch, hash)
	if err != nil {
		logger.Error(err, "patch of files failed", "files", patch.Len(), "configHash", hash)
	} else {
		logger.Info("applied a patch of files", "files", patch.Len(), "configHash", hash)
	}
	if r.Applied != nil {
		r.Applied(err)
	}
	// A server may send the same patch again as the answer to a report.
	if changed {
		r.Changed()
	}
}
