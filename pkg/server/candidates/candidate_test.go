// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package candidates

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestValidate(t *testing.T) {
	many := make([]Candidate, MaxCandidates+1)
	for n := range many {
		many[n].Name = strings.Repeat("x", n+1)
	}
	tests := map[string]struct {
		list []Candidate
		want string // a part of the error, or "" if the list is valid
	}{
		"none":                    {nil, ""},
		"base and the rest":       {[]Candidate{{Name: "base", MaxInstances: new(int32(0))}, {Name: "rest"}}, ""},
		"as many as there may be": {many[:MaxCandidates], ""},
		"too many":                {many, "c: Too many: 17: must have at most 16 items"},
		"no name":                 {[]Candidate{{}}, "c[0].name: Required value"},
		"no DNS label":            {[]Candidate{{Name: "Base"}}, `c[0].name: Invalid value: "Base"`},
		"a name twice":            {[]Candidate{{Name: "a"}, {Name: "b"}, {Name: "a"}}, `c[2].name: Duplicate value: "a"`},
		"a negative maximum":      {[]Candidate{{Name: "a", MaxInstances: new(int32(-1))}, {Name: "b"}}, "c[0].max_instances: Invalid value: -1: must not be negative"},
		"a maximum of the last":   {[]Candidate{{Name: "a"}, {Name: "b", MaxInstances: new(int32(3))}}, "c[1].max_instances: Forbidden: the last candidate has no maximum"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := Validate(field.NewPath("c"), test.list).ToAggregate()
			if test.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestValidateReturn(t *testing.T) {
	path, list := field.NewPath("r"), []Candidate{{Name: "a"}}
	assert.Empty(t, ValidateReturn(path, 0, nil))
	assert.Empty(t, ValidateReturn(path, MinReturnAfterSeconds, list))
	assert.ErrorContains(t, ValidateReturn(path, MinReturnAfterSeconds-1, list).ToAggregate(), "must be at least 600 seconds")
	assert.ErrorContains(t, ValidateReturn(path, -1, list).ToAggregate(), "must be at least 600 seconds")
	assert.ErrorContains(t, ValidateReturn(path, 3600, nil).ToAggregate(), "needs candidates")
}

func TestEqual(t *testing.T) {
	list := []Candidate{{Name: "a", MaxInstances: new(int32(1))}, {Name: "b"}}
	assert.True(t, Equal(list, []Candidate{{Name: "a", MaxInstances: new(int32(1))}, {Name: "b"}}))
	for _, other := range [][]Candidate{nil, list[:1], {list[1], list[0]}, {{Name: "a"}, {Name: "b"}}, {{Name: "a", MaxInstances: new(int32(2))}, {Name: "b"}}} {
		assert.False(t, Equal(list, other), "%v", other)
	}
}
