// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command_test

import (
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"nstance.dev/operator/pkg/plugin/command"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// The help lists every command, and that of a command its flags.
func TestHelp(t *testing.T) {
	for name, arguments := range map[string][]string{"help": {"--help"}, "help-dashboard": {"dashboard", "--help"}} {
		t.Run(name, func(t *testing.T) {
			// A default of the flags has the home folder.
			t.Setenv("HOME", "/home/user")
			streams, _, stdout, _ := genericiooptions.NewTestIOStreams()
			cmd := command.New(streams)
			cmd.SetArgs(arguments)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			plugintest.Golden(t, name+".txt", stdout.String())
		})
	}
}
