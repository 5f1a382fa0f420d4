// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testguest

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is a file of an initramfs.
type File struct {
	// Name is its path in the guest, without the first slash, and Path that of the host.
	Name, Path string
	Mode       os.FileMode
}

// WriteInitramfs writes files and their folders as the kernel unpacks them: an archive of
// cpio's format newc, compressed.
func WriteInitramfs(w io.Writer, files []File) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	number := 0
	entry := func(name string, mode uint32, content []byte) {
		number++
		fmt.Fprintf(compressed, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
		const header = 110
		fmt.Fprintf(compressed, "%s\x00%s", name, padding(header+len(name)+1))
		_, _ = compressed.Write(content)
		fmt.Fprint(compressed, padding(len(content)))
	}
	const folder, regular = 0o040000, 0o100000
	written := map[string]bool{".": true}
	for _, file := range files {
		content, err := os.ReadFile(file.Path)
		if err != nil {
			return err
		}
		for _, dir := range parents(file.Name) {
			if !written[dir] {
				written[dir] = true
				entry(dir, folder|0o755, nil)
			}
		}
		entry(file.Name, regular|uint32(file.Mode.Perm()), content)
	}
	entry("TRAILER!!!", 0, nil)
	return compressed.Close() // reports errors of earlier writes too
}

// padding returns what makes a length a multiple of four.
func padding(length int) string { return strings.Repeat("\x00", -length&3) }

// parents returns the folders of a path, the outermost first.
func parents(path string) []string {
	var list []string
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
		list = append(list, dir)
	}
	slices.Reverse(list)
	return list
}
