// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package inputs tells Go's test cache which programs and folders a suite of end-to-end tests
// uses. The cache itself considers only the test binary, environment variables, and files within
// the module (https://pkg.go.dev/cmd/go#hdr-Test_packages). make links the digests of a suite's
// inputs into its test binary (see e2e/cmd/suites), so that the result of a suite is reused
// exactly if its inputs have not changed.
package inputs

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Variable is the variable that the linker sets to the inputs of a suite, in the form of Format.
const Variable = "nstance.dev/operator/e2e/inputs.linked"

// Folders of the repository that are inputs.
const (
	Docs      = "docs"
	Manifests = "manifests"
)

// linked is empty if a test is run without make.
var linked string

func init() {
	if linked != "" {
		return
	}
	// Go stores the results of tests that get this flag. Without digests it could not
	// know when a result is out of date.
	os.Args = slices.DeleteFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.testlogfile=")
	})
}

// Format returns the value of Variable for inputs and their digests.
func Format(digests map[string]string) string {
	var list []string
	for name, digest := range digests {
		list = append(list, name+":"+digest)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// Built reports whether make has built a program before the tests. It is false without
// make. A suite that uses an input that e2e/cmd/suites does not list for it is an error.
func Built(program string) (bool, error) {
	return linked != "", Check(program)
}

// Check returns an error if a test uses an input that e2e/cmd/suites does not list for its
// suite.
func Check(input string) error {
	if linked == "" || slices.ContainsFunc(strings.Split(linked, ","), func(entry string) bool {
		name, _, _ := strings.Cut(entry, ":")
		return name == input
	}) {
		return nil
	}
	return fmt.Errorf("the tests of this package use %s: add it to the inputs of the package in e2e/cmd/suites", input)
}
