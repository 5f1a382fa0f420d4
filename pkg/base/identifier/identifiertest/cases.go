// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identifiertest has the table of identifiers with which the Go rule and
// the rules in the CRDs are tested.
package identifiertest

// Case is one value and whether it is an identifier.
type Case struct {
	Value string
	Valid bool
}

// Cases is the shared table.
var Cases = []Case{
	{"a", true},
	{"0", true},
	{"workers", true},
	{"us-west-2a", true},
	{"a-b-c", true},
	{"abcdefghijklmnopqrstuvwxyz012345", true},
	{"", false},
	{"abcdefghijklmnopqrstuvwxyz0123456", false},
	{"-a", false},
	{"a-", false},
	{"-", false},
	{"a--b", false},
	{"a---b", false},
	{"Workers", false},
	{"work_ers", false},
	{"work.ers", false},
	{"work ers", false},
	{"wörk", false},
	{"a\n", false},
	{"a/b", false},
}
