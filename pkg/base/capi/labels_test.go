// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"strings"
	"testing"
)

// The wanted values are results of Cluster API's function MustFormatValue in v1.14.2.
func TestLabelValue(t *testing.T) {
	for name, want := range map[string]string{
		"":                                   "",
		"a":                                  "a",
		"workers":                            "workers",
		"workers.gpu":                        "workers.gpu",
		"9-lives":                            "9-lives",
		"Upper_case":                         "Upper_case",
		strings.Repeat("a", 63):              strings.Repeat("a", 63),
		strings.Repeat("a", 64):              "hash_2W8PhQ_z",
		strings.Repeat("workers.", 31) + "x": "hash_bCXvkg_z",
		"pool-7-":                            "hash_Ayrq_g_z",
		"pool-24-":                           "hash_q9b-Gw_z",
		"-workers":                           "hash_q37NHw_z",
		"workers-":                           "hash_UyOCEw_z",
		"workers/gpu":                        "hash_ygdTEQ_z",
		"größe":                              "hash_zTj0mg_z",
	} {
		if got := LabelValue(name); got != want {
			t.Errorf("value of %q is %q, want %q", name, got, want)
		}
	}
}
