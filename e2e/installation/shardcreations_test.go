// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"slices"
	"testing"
)

func TestCreationsInLog(t *testing.T) {
	const log = `I0102 03:04:05.000001       7 createinstance.go:47] "Received create request for an instance" client="dev" group="a" instance=""
I0102 03:04:05.000002       7 createinstance.go:91] "Creating on-demand instance" client="dev" tenant="default" instance="ond1" group="a"
I0102 03:04:05.000003       7 createinstance.go:47] "Received create request for an instance" client="dev" group="a" instance=""
I0102 03:04:05.000004       7 createinstance.go:91] "Creating on-demand instance" client="dev" tenant="default" instance="ond2" group="b"
`
	want := []Creation{{Instance: "ond1", Group: "a"}, {Instance: "ond2", Group: "b"}}
	if creations := creationsIn([]byte(log)); !slices.Equal(creations, want) {
		t.Errorf("read %+v, want %+v", creations, want)
	}
}
