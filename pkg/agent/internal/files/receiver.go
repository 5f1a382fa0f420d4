// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package files receives files from the server and applies them in patches, each as a whole
// or not at all. It also creates the key pairs that the server requests
// (docs/agent.md#files).
package files

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/agent/internal/retry"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// maxMessageBytes is more than maxFileBytes, so that a file that is too large is received
// and its refusal reported. gRPC would end the stream.
const maxMessageBytes = 2 * maxFileBytes

// Receiver receives patches and applies them.
type Receiver struct {
	Connection *identity.Connection
	Store      *Store
	// Changed is called when a patch changed the hash of the configuration or the errors.
	Changed func()
	// Applied is called after each patch, with the error if it was refused or failed.
	// Optional.
	Applied func(error)
}

// Run receives patches until ctx is done.
func (r *Receiver) Run(ctx context.Context) {
	retry.Loop(ctx, "Receiving files", r.receive)
}

// receive receives patches from one stream. If the stream ends within a patch, the patch is
// discarded.
func (r *Receiver) receive(ctx context.Context) error {
	conn := r.Connection.Acquire()
	defer conn.Release()
	ctx, cancel := conn.UntilReplaced(ctx)
	defer cancel()
	stream, err := conn.ReceiveFiles(ctx, &emptypb.Empty{}, grpc.MaxCallRecvMsgSize(maxMessageBytes))
	if err != nil {
		return identity.StreamError(ctx, err)
	}
	var patch Patch
	for {
		transfer, err := stream.Recv()
		if err != nil {
			if patch.Len() > 0 {
				err = fmt.Errorf("discard a patch of %d files that is not complete: %w", patch.Len(), err)
			}
			return identity.StreamError(ctx, err)
		}
		if transfer.GetFilename() != "" {
			patch.Add(transfer)
			continue
		}
		r.apply(ctx, &patch, transfer)
		patch = Patch{}
	}
}

// apply applies a patch. closing is the message that ended it.
func (r *Receiver) apply(ctx context.Context, patch *Patch, closing *nstancev1.FileTransfer) {
	logger := klog.FromContext(ctx)
	hash := closing.GetConfigHash()
	if hash == "" {
		logger.Error(nil, "Discarded a patch that the server ended without a hash", "files", patch.Len())
		return
	}
	patch.Complete = closing.GetComplete()
	changed, err := r.Store.Apply(patch, hash)
	if err != nil {
		logger.Error(err, "Patch of files failed", "files", patch.Len(), "configHash", hash)
	} else {
		logger.Info("Applied a patch of files", "files", patch.Len(), "configHash", hash)
	}
	if r.Applied != nil {
		r.Applied(err)
	}
	// A server may send the same patch again as the answer to a report.
	if changed {
		r.Changed()
	}
}

// Limits of a patch, which is in memory until it is complete.
const (
	maxFiles      = 256
	maxFileBytes  = 4 << 20
	maxPatchBytes = 32 << 20
	// maxTextBytes is the maximum size of a name or a reason in a report.
	maxTextBytes = 300
)

// file is one file of a patch.
type file struct {
	content  []byte
	modified time.Time
}

// Patch collects the files that a server sends until it ends the patch. The zero Patch is
// empty.
type Patch struct {
	// Complete is true if the patch has all files of the server: other files of earlier
	// patches are removed.
	Complete bool

	files map[string]file
	size  int
	// refused has the reasons why the patch cannot be applied, by file name.
	refused map[string]string
}

// Len returns the number of files, including refused files.
func (p *Patch) Len() int { return len(p.files) + len(p.refused) }

// Add adds the file of a message. A refused file prevents the whole patch from being
// applied.
func (p *Patch) Add(transfer *nstancev1.FileTransfer) {
	name := transfer.GetFilename()
	if err := p.check(transfer); err != nil {
		p.refuse(name, err)
		return
	}
	if p.files == nil {
		p.files = map[string]file{}
	}
	modified := time.Now()
	if transfer.LastModified != nil {
		modified = transfer.LastModified.AsTime()
	}
	p.files[name] = file{content: transfer.Content, modified: modified}
	p.size += len(transfer.Content)
}

func (p *Patch) check(transfer *nstancev1.FileTransfer) error {
	name, content := transfer.GetFilename(), transfer.GetContent()
	if err := validateFileName(name); err != nil {
		return err
	}
	_, repeated := p.files[name]
	switch {
	case transfer.GetConfigHash() != "":
		return errors.New("the message with the file has a hash too")
	case repeated:
		return errors.New("the patch contains it twice")
	case len(content) > maxFileBytes:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(content), maxFileBytes)
	case p.size+len(content) > maxPatchBytes:
		return fmt.Errorf("with it the patch has %d bytes, at most %d are allowed", p.size+len(content), maxPatchBytes)
	case len(p.files) == maxFiles:
		return fmt.Errorf("the patch has more than %d files", maxFiles)
	case transfer.LastModified != nil && !transfer.LastModified.IsValid():
		return errors.New("its time is invalid")
	}
	return validate(name, content)
}

// refuse records a reason, which is reported to the server.
func (p *Patch) refuse(name string, reason error) {
	if p.refused == nil {
		p.refused = map[string]string{}
	}
	if len(p.refused) < maxFiles {
		p.refused[truncate(name)] = truncate(reason.Error())
	}
}

// truncate shortens a text that the server chose: reports have a limit.
func truncate(text string) string {
	if len(text) <= maxTextBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxTextBytes], "") + "..."
}
