// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
)

// fromNothing is the section of each guide that ends with the first Node.
const fromNothing = "From nothing to kubectl scale"

// mostCommands is how many commands a guide may have until the first Node.
const mostCommands = 12

var (
	guides = []string{"aws.md", "google.md", "proxmox.md"}
	fence  = regexp.MustCompile("(?ms)^( *)```sh\n(.*?)^ *```$")
)

// root is the folder of the repository. Tests change the working directory.
var root = func() string {
	path, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		panic(err)
	}
	return path
}()

// shellBlocks returns the blocks of shell commands in a section of a document, without their
// indentation.
func shellBlocks(t *testing.T, document, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", document))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found, "%s has no section %q", document, heading)
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []string
	for _, match := range fence.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n"))
	}
	require.NotEmpty(t, blocks)
	return blocks
}

// commands returns the commands of blocks: lines that a backslash continues are one, and several
// in a line count each.
func commands(blocks []string) []string {
	text := strings.ReplaceAll(strings.Join(blocks, "\n"), "\\\n", "")
	var found []string
	for line := range strings.Lines(text) {
		for command := range strings.SplitSeq(strings.ReplaceAll(line, "&&", ";"), ";") {
			if command = strings.TrimSpace(command); command != "" && !strings.HasPrefix(command, "#") {
				found = append(found, command)
			}
		}
	}
	return found
}

func TestCommandsAreCounted(t *testing.T) {
	assert.Equal(t, []string{"a  --b", "c", "d", "e | f"}, commands([]string{"\na \\\n --b\n", "\n# no command\nc; d && e | f\n"}))
}

// TestGuidesAreShort: who follows a guide types at most twelve commands until the first Node.
func TestGuidesAreShort(t *testing.T) {
	for _, guide := range guides {
		found := commands(shellBlocks(t, guide, fromNothing))
		assert.LessOrEqual(t, len(found), mostCommands, "%s: %s", guide, strings.Join(found, "\n"))
		assert.Contains(t, found[len(found)-1], "pool.yaml", "the last command creates the first machine")
	}
}

// words splits a command as a shell does.
func words(command string) []string {
	var found []string
	for _, match := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(command, -1) {
		found = append(found, match[1]+match[2])
	}
	return found
}

// writtenFile matches names of files and folders that the commands of nstance-admin write.
var writtenFile = regexp.MustCompile(`^(us-west-2a|europe-west1-b|pve-a|identity)(/|$)`)

// TestCommandsOfGuides runs the commands of nstance-admin in the order of each guide. The storage is
// a folder; commands that need a server or a cloud are only parsed.
func TestCommandsOfGuides(t *testing.T) {
	for _, guide := range append(slices.Clone(guides), "aws.md#On EKS") {
		document, heading, _ := strings.Cut(guide, "#")
		if heading == "" {
			heading = fromNothing
		}
		t.Run(guide, func(t *testing.T) {
			t.Chdir(t.TempDir())
			run := 0
			for _, command := range commands(shellBlocks(t, document, heading)) {
				_, command, found := strings.Cut(" "+command, " nstance-admin ")
				if !found {
					continue
				}
				command, _, _ = strings.Cut(command, " | ")
				args := words(command)
				switch name := strings.Join(args[:2], " "); name {
				case "shard init", "operator install":
				case "cluster init":
					args = replaceFlag(replaceFlag(args, "--storage-bucket", "bucket"), "--storage", "file")
				case "provider check":
					args = append(args, "--help")
				default:
					t.Fatalf("unknown command %q", name)
				}
				run++
				nstanceAdmin(t, args)
			}
			// The files that other commands of the guide name exist now.
			for _, command := range commands(shellBlocks(t, document, heading)) {
				for _, word := range words(command) {
					if word = strings.TrimSuffix(word, "'"); writtenFile.MatchString(word) {
						_, err := os.Stat(word)
						assert.NoError(t, err, command)
					}
				}
			}
			assert.Equal(t, map[bool]int{true: 1, false: 4}[heading == "On EKS"], run)
		})
	}
}

func nstanceAdmin(t *testing.T, args []string) {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetIn(strings.NewReader(""))
	command.SetArgs(args)
	require.NoError(t, command.ExecuteContext(t.Context()), "nstance-admin %s", strings.Join(args, " "))
}

// replaceFlag sets the value of a flag.
func replaceFlag(args []string, flag, value string) []string {
	if at := slices.Index(args, flag); at >= 0 {
		args = slices.Delete(args, at, at+2)
	}
	return append(args, flag, value)
}
