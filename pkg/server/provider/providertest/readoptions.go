// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

// ReadOptions returns the options in a text, and what is wrong with them in a shard that has
// subnets.
func ReadOptions[O provider.Options](t *testing.T, read func(*jsonc.Object) provider.Options, text string, subnets ...string) (O, []string) {
	t.Helper()
	var errs field.ErrorList
	object, err := jsonc.Parse([]byte(text), &errs)
	require.NoError(t, err)
	options := read(object).(O)
	errs = append(errs, options.Validate(field.NewPath("options"), sets.New(subnets...))...)
	return options, Messages(errs)
}

// Messages returns the texts of errors.
func Messages(errs field.ErrorList) []string {
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return texts
}

// Object returns an object in JSON with members whose values are JSON.
func Object(members map[string]string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		texts = append(texts, `"`+name+`": `+members[name])
	}
	return "{" + strings.Join(texts, ",") + "}"
}
