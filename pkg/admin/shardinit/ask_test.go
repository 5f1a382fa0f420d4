// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMissingSettingsAreAskedFor: only the required ones, and again after a wrong answer.
func TestMissingSettingsAreAskedFor(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addFlags(flags)
	require.NoError(t, flags.Parse([]string{"--provider", "kwok", "--cluster-id", "prod", "--storage-bucket", "bucket"}))
	var asked strings.Builder
	v, err := readSettings(flags, newAsker(strings.NewReader("kops\nnone\n\nzone-a\n10.0.0.1:80\n10.0.0.1\n"), &asked))
	require.NoError(t, err)
	assert.Equal(t, "none", v["join"])
	assert.Equal(t, "zone-a", v["shard"])
	assert.Equal(t, "zone-a", v["region"])
	assert.Equal(t, "10.0.0.1", v["address"])
	assert.Contains(t, asked.String(), `"kops" is unknown, must be one of kubeadm`)
	for question, times := range map[string]int{"--join": 2, "--shard": 2, "--address": 2, "--provider": 0, "--arch": 0, "--project": 0} {
		assert.Equal(t, times, strings.Count(asked.String(), question+", "), question)
	}

	// The user leaves.
	_, err = readSettings(flags, newAsker(strings.NewReader("none\n"), &asked))
	require.ErrorContains(t, err, "--shard: must be set")
}

// TestOnlyTerminalsAreAsked: a script gets an error, and does not wait.
func TestOnlyTerminalsAreAsked(t *testing.T) {
	assert.Nil(t, terminalAsker(strings.NewReader("aws\n"), &strings.Builder{}))
}

func TestWordsOfUnits(t *testing.T) {
	for text, want := range map[string]string{
		"us-west-2a": "us-west-2a", "a b": `"a b"`, "50%": `"50%%"`, "$HOME": `"$$HOME"`, `a"b\c`: `"a\"b\\c"`, "": `""`,
	} {
		word, err := unitWord(text)
		require.NoError(t, err)
		assert.Equal(t, want, word)
	}
	_, err := unitWord("a\nExecStartPre=reboot")
	require.Error(t, err)
}
