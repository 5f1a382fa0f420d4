// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command citations reads names of files from standard input, one a line, and
// prints every citation in them of a document that does not exist: docs/NAME.md,
// docs/NAME.md#heading, relative links and paths of the tree in Markdown, and
// documents that never were in the tree. It exits with 1 if there is one.
package main

import (
	"bufio"
	"cmp"
	"fmt"
	"log"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	var names []string
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		names = append(names, lines.Text())
	}
	problems, err := newChecker(".").check(names)
	if err != nil {
		log.Fatalf("check citations: %v", err)
	}
	for _, p := range problems {
		fmt.Fprintf(os.Stderr, "%s:%d: %s\n", p.file, p.line, p.text)
	}
	if len(problems) > 0 {
		fmt.Fprintf(os.Stderr, "%d citations do not resolve\n", len(problems))
		os.Exit(1)
	}
}

// problem is a citation that does not resolve.
type problem struct {
	file string
	line int
	text string
}

// checker checks the files below a folder.
type checker struct {
	root string
	// headings of the Markdown files that were read, by name.
	headings map[string]map[string]bool
}

func newChecker(root string) *checker {
	return &checker{root: root, headings: map[string]map[string]bool{}}
}

var (
	// source matches the files whose comments are checked.
	source = regexp.MustCompile(`\.(go|proto|sh|ya?ml|jsonc|md)$|(^|/)(Makefile|run)$`)
	// citation matches a document of the root folder docs or a folder in it, and the byte
	// before it.
	citation = regexp.MustCompile(`(^|[^A-Za-z0-9_./-])(docs/[A-Za-z0-9_/-]+\.(?:md|jsonc))(#[A-Za-z0-9_-]+)?`)
	// foreign matches documents that are not in the tree.
	foreign = regexp.MustCompile(`(?i)\b(server document|wire contract|capi contract|operator document)\b|\(decision\)`)
	// code matches code in a line of Markdown.
	code = regexp.MustCompile("`[^`]*`")
	// tree matches a file or folder of the tree in code, unless its name has a placeholder
	// in upper case or a pattern.
	tree = regexp.MustCompile("`((?:pkg|cmd|e2e|hack|manifests|proto)/[a-z0-9_./-]+)`")
	// link matches the target of a Markdown link.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// leader matches the beginning of a comment line.
	leader = regexp.MustCompile(`^\s*(//+|#+|\*)?\s*`)
)

// check returns the problems of the named files, by name and line.
func (c *checker) check(names []string) ([]problem, error) {
	var problems []problem
	for _, name := range names {
		// The patterns above cite what they find.
		if !source.MatchString(name) || path.Dir(name) == "hack/citations" {
			continue
		}
		data, err := os.ReadFile(path.Join(c.root, name))
		if os.IsNotExist(err) {
			continue // deleted and not committed yet
		}
		if err != nil {
			return nil, err
		}
		problems = append(problems, c.checkFile(name, string(data))...)
	}
	slices.SortStableFunc(problems, func(a, b problem) int {
		return cmp.Or(strings.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	return problems, nil
}

func (c *checker) checkFile(name, text string) []problem {
	var problems []problem
	report := func(line int, format string, args ...any) {
		problems = append(problems, problem{name, line, fmt.Sprintf(format, args...)})
	}
	isMarkdown := path.Ext(name) == ".md"
	fenced := false
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		for _, found := range citation.FindAllStringSubmatch(line, -1) {
			if why := c.resolve(found[2], strings.TrimPrefix(found[3], "#")); why != "" {
				report(i+1, "%s%s: %s", found[2], found[3], why)
			}
		}
		if isMarkdown && strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if !isMarkdown || fenced {
			continue
		}
		for _, found := range tree.FindAllStringSubmatch(line, -1) {
			if why := c.resolve(found[1], ""); why != "" {
				report(i+1, "%s: %s", found[1], why)
			}
		}
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "`code`"), -1) {
			if why := c.resolveLink(name, found[1]); why != "" {
				report(i+1, "link %s: %s", found[1], why)
			}
		}
	}
	// A name may go on in the next line of a comment.
	joined, starts := join(lines)
	for _, at := range foreign.FindAllStringIndex(joined, -1) {
		line, _ := slices.BinarySearch(starts, at[0]+1)
		report(line, "%q is no document of the tree", joined[at[0]:at[1]])
	}
	return problems
}

// join returns the lines without the comment leaders, as one line, and the offset of each
// line in it.
func join(lines []string) (joined string, starts []int) {
	var b strings.Builder
	for _, line := range lines {
		starts = append(starts, b.Len())
		b.WriteString(line[len(leader.FindString(line)):])
		b.WriteByte(' ')
	}
	return b.String(), starts
}

// resolveLink returns why the target of a link in a file does not resolve, "" if it
// resolves or is outside of the tree.
func (c *checker) resolveLink(from, target string) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	file, anchor, _ := strings.Cut(target, "#")
	if file == "" {
		return c.resolve(from, anchor)
	}
	return c.resolve(path.Join(path.Dir(from), file), anchor)
}

// resolve returns whether the file or its heading is missing, "" if both exist.
func (c *checker) resolve(file, anchor string) string {
	if _, err := os.Stat(path.Join(c.root, file)); err != nil {
		return "no such file"
	}
	if anchor == "" || path.Ext(file) != ".md" {
		return ""
	}
	if c.headings[file] == nil {
		data, err := os.ReadFile(path.Join(c.root, file))
		if err != nil {
			return err.Error()
		}
		c.headings[file] = headings(string(data))
	}
	if !c.headings[file][anchor] {
		return "no such heading"
	}
	return ""
}

// headings returns the anchors of a Markdown file, as GitHub makes them.
func headings(text string) map[string]bool {
	anchors := map[string]bool{}
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		title := strings.TrimLeft(line, "#")
		if fenced || title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		base := slug(title)
		anchor := base
		for n := 1; anchors[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", base, n)
		}
		anchors[anchor] = true
	}
	return anchors
}

var (
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	unslug   = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// slug returns the anchor of a heading.
func slug(title string) string {
	title = linkText.ReplaceAllString(strings.TrimSpace(title), "$1")
	return strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}
