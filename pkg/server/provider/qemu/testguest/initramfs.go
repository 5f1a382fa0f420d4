// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testguest

import (
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is a file of an initramfs.
type File struct {
	// Name is the path in the guest without the leading slash, and Path the path on the host.
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

// resolve returns the paths of modules in a folder and of all their dependencies. The
// dependencies of a module precede it.
func resolve(folder string, names []string) ([]string, error) {
	paths := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if name, found := strings.CutSuffix(filepath.Base(path), ".ko"); found {
			paths[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var ordered []string
	for _, name := range names {
		if err := addModule(&ordered, paths, name); err != nil {
			return nil, err
		}
	}
	return ordered, nil
}

// addModule appends the dependencies of a module and then the module to ordered, without
// duplicates.
func addModule(ordered *[]string, paths map[string]string, name string) error {
	path, found := paths[moduleName(name)]
	if !found {
		return fmt.Errorf("the kernel has no module %s", name)
	}
	if slices.Contains(*ordered, path) {
		return nil
	}
	needed, err := dependencies(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, name := range needed {
		if err := addModule(ordered, paths, name); err != nil {
			return err
		}
	}
	*ordered = append(*ordered, path)
	return nil
}

// moduleName returns the name that files and dependencies of a module have in common.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// dependencies returns the names of the modules that a module needs.
func dependencies(path string) ([]string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("it is no module")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	for text := range strings.SplitSeq(string(data), "\x00") {
		if names, found := strings.CutPrefix(text, "depends="); found {
			return strings.FieldsFunc(names, func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}
