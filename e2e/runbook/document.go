// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package runbook runs procedures of docs/runbooks as they are written there. A
// procedure is a section with these parts, in this order:
//
//   - a paragraph that begins with "*Not touched:*";
//   - a fenced block sh that only sets variables, to which a reader gives values;
//   - numbered steps. A step with fenced blocks sh runs them. A step without a block
//     happens outside of Kubernetes, such as a start of servers, and the test performs it.
package runbook

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"nstance.dev/operator/e2e/inputs"
)

// untouchedMark begins the paragraph that every procedure has.
const untouchedMark = "*Not touched:*"

// indexHeading is the heading of the section that lists the procedures.
const indexHeading = "Procedures"

// section is a part of the document from a heading to the next.
type section struct {
	heading string
	lines   []string
}

// variable is a shell variable that the reader of a procedure sets.
type variable struct {
	name     string
	exported bool
}

// step is a numbered step of a procedure.
type step struct {
	text string
	// blocks are the commands, empty if the step happens outside of Kubernetes.
	blocks []string
}

// steps are the variables and the numbered steps of a procedure.
type steps struct {
	variables []variable
	steps     []step
}

// documents are the documents with procedures, patterns in the folder docs.
var documents = []string{"install.md", "certificates.md", "runbooks/*.md"}

// readDocuments returns the sections of the documents with procedures.
func readDocuments(root string) ([]section, error) {
	if err := inputs.Check(inputs.Docs); err != nil {
		return nil, err
	}
	var sections []section
	for _, pattern := range documents {
		paths, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			sections = append(sections, splitSections(string(data))...)
		}
	}
	return sections, nil
}

var headingLine = regexp.MustCompile(`^#{1,6} (.+)$`)

// splitSections splits Markdown at its headings. A comment in a block is no heading.
func splitSections(text string) []section {
	var sections []section
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if found := headingLine.FindStringSubmatch(line); found != nil && !fenced {
			sections = append(sections, section{heading: found[1]})
			continue
		}
		if len(sections) > 0 {
			last := &sections[len(sections)-1]
			last.lines = append(last.lines, line)
		}
	}
	return sections
}

// find returns the section with a heading.
func find(sections []section, heading string) (section, error) {
	for _, s := range sections {
		if s.heading == heading {
			return s, nil
		}
	}
	return section{}, fmt.Errorf("the documents have no section %q", heading)
}

// isProcedure reports whether a section is marked as a procedure.
func (s section) isProcedure() bool {
	for _, line := range s.lines {
		if strings.HasPrefix(line, untouchedMark) {
			return true
		}
	}
	return false
}

var (
	stepLine     = regexp.MustCompile(`^(\d+)\. (.+)$`)
	variableLine = regexp.MustCompile(`^(export )?([A-Z][A-Z_]*)=\S`)
)

// parse returns the steps of a procedure.
func (s section) parse() (steps, error) {
	var parsed steps
	fail := func(format string, arguments ...any) (steps, error) {
		return steps{}, fmt.Errorf("section %q: "+format, append([]any{s.heading}, arguments...)...)
	}
	if !s.isProcedure() {
		return fail("no paragraph begins with %q", untouchedMark)
	}
	inText := true // of the latest step
	for i := 0; i < len(s.lines); i++ {
		line := s.lines[i]
		trimmed := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(trimmed)]
		found := stepLine.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			inText = false
			block, end := fencedBlock(s.lines, i, indent)
			i = end
			switch {
			case trimmed != "```sh":
			case indent != "" && len(parsed.steps) > 0:
				last := &parsed.steps[len(parsed.steps)-1]
				last.blocks = append(last.blocks, block)
			case parsed.variables == nil && len(parsed.steps) == 0:
				var err error
				if parsed.variables, err = parseVariables(block); err != nil {
					return fail("%w", err)
				}
			default:
				return fail("a block is no part of a step: %s", block)
			}
		case found != nil:
			if want := len(parsed.steps) + 1; found[1] != fmt.Sprint(want) {
				return fail("step %s follows step %d", found[1], want-1)
			}
			parsed.steps = append(parsed.steps, step{text: found[2]})
			inText = true
		case inText && indent != "" && len(parsed.steps) > 0:
			parsed.steps[len(parsed.steps)-1].text += " " + trimmed
		}
	}
	if parsed.variables == nil {
		return fail("no block sets variables before the steps")
	}
	for _, step := range parsed.steps {
		if len(step.blocks) > 0 {
			return parsed, nil
		}
	}
	return fail("no step has a block")
}

// fencedBlock returns the content of the block that begins in line begin, without the
// indentation of its fence, and the line of the end.
func fencedBlock(lines []string, begin int, indent string) (block string, end int) {
	var content strings.Builder
	for end = begin + 1; end < len(lines) && strings.TrimSpace(lines[end]) != "```"; end++ {
		content.WriteString(strings.TrimPrefix(lines[end], indent) + "\n")
	}
	return content.String(), end
}

// parseVariables returns the variables of a block that sets them and nothing else.
func parseVariables(block string) ([]variable, error) {
	var variables []variable
	for line := range strings.Lines(block) {
		found := variableLine.FindStringSubmatch(line)
		if found == nil {
			return nil, fmt.Errorf("the block with the variables has the line %q", line)
		}
		variables = append(variables, variable{name: found[2], exported: found[1] != ""})
	}
	return variables, nil
}

// anchor returns the anchor of a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}
