// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// key is a label, annotation or finalizer.
type key struct {
	kind, name, meaning string
	// on are the objects that have the key, and writer who writes it.
	on, writer string
	// stability is stable or internal.
	stability string
}

// marker begins the last line of the comment of a constant.
const marker = "+metadata:"

// readKeys reads the constants of a Go file whose names begin with Label, Annotation or
// Finalizer. Each must have a marker.
func readKeys(path string) ([]key, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var keys []key
	for _, declaration := range file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			constant := spec.(*ast.ValueSpec)
			comment := constant.Doc
			if comment == nil {
				comment = group.Doc
			}
			found, err := parseKey(constant, comment)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", constant.Names[0].Name, err)
			}
			keys = append(keys, found)
		}
	}
	return keys, nil
}

func parseKey(constant *ast.ValueSpec, comment *ast.CommentGroup) (key, error) {
	name := constant.Names[0].Name
	var found key
	for _, kind := range []string{"Label", "Annotation", "Finalizer"} {
		if strings.HasPrefix(name, kind) {
			found.kind = strings.ToLower(kind)
		}
	}
	value, ok := constant.Values[0].(*ast.BasicLit)
	if found.kind == "" || !ok {
		return key{}, fmt.Errorf("it is no label, annotation or finalizer with a literal value")
	}
	var err error
	if found.name, err = strconv.Unquote(value.Value); err != nil {
		return key{}, err
	}
	text, settings, ok := strings.Cut(comment.Text(), marker)
	if !ok {
		return key{}, fmt.Errorf("its comment has no line %s", marker)
	}
	for setting := range strings.SplitSeq(strings.TrimSpace(settings), ",") {
		name, value, _ := strings.Cut(setting, "=")
		value = strings.ReplaceAll(value, ";", ",")
		switch name {
		case "on":
			found.on = value
		case "writer":
			found.writer = value
		case "stable", "internal":
			found.stability = name
		default:
			return key{}, fmt.Errorf("its marker has the unknown setting %q", setting)
		}
	}
	if found.on == "" || found.writer == "" || found.stability == "" {
		return key{}, fmt.Errorf("its marker needs on, writer, and stable or internal")
	}
	meaning := strings.Join(strings.Fields(text), " ")
	found.meaning = strings.TrimPrefix(meaning, name+" ")
	return found, nil
}

func writeKeys(text *strings.Builder, keys []key) {
	text.WriteString("\n## Labels and annotations\n\n| key | kind | on | written by | | meaning |\n|---|---|---|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(text, "| `%s` | %s | %s | %s | %s | %s |\n", k.name, k.kind, k.on, k.writer, k.stability, strings.ReplaceAll(k.meaning, "|", `\|`))
	}
}
