// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package files receives the files that a server sends and applies them in patches: all
// files of a patch, or none (docs/agent.md#files).
package files

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"nstance.dev/operator/pkg/agent/names"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

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

// Patch is what a server sent since the last complete patch. The zero Patch is empty.
type Patch struct {
	// Complete is true if the patch has all files that the server sends: those of earlier
	// patches that it lacks are removed.
	Complete bool

	files map[string]file
	size  int
	// refused is why the patch cannot be applied, by name of the file.
	refused map[string]string
}

// Len returns the number of files, those that were refused included.
func (p *Patch) Len() int { return len(p.files) + len(p.refused) }

// Add adds the file of a message. A file that is refused makes the whole patch one that
// cannot be applied.
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
	if err := names.ValidateFile(name); err != nil {
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
