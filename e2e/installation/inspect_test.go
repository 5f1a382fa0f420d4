// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCallsInLog(t *testing.T) {
	const log = `I0102 03:04:05.000001       7 server.go:70] "Serving" address="127.0.0.1:1"
I0102 03:04:05.000002       7 operator.go:54] "Received group" client="dev" tenant="default" group="a" size=3
E0102 03:04:05.000003       7 operator.go:70] "Group was not changed" err="group size=9" client="dev" group="a"
I0102 03:04:05.000004       7 operator.go:83] "Received deletion of group" client="dev" tenant="default" group="b"
I0102 03:04:05.000005       7 instances.go:83] "Received deletion of instance" client="dev" tenant="default" instance="knd1" group="a"
I0102 03:04:05.000006       7 instances.go:93] "Received acknowledgement of a drain" client="dev" tenant="default" instance="knd2" group="a" draining=true
`
	calls, err := callsIn([]byte(log))
	require.NoError(t, err)
	want := []Call{
		{Method: UpsertGroup, Group: "a", Size: 3},
		{Method: DeleteGroup, Group: "b"},
		{Method: DeleteInstance, Group: "a", Instance: "knd1"},
		{Method: AcknowledgeDrained, Group: "a", Instance: "knd2"},
	}
	if !slices.Equal(calls, want) {
		t.Errorf("read %+v, want %+v", calls, want)
	}
}

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
