// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testguest

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// resolve returns the paths of modules in a folder and of all that they depend on, each
// after those that it depends on.
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

// addModule adds what a module depends on, and the module, unless they are in ordered.
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
