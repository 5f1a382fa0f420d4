// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import (
	"slices"
	"testing"
)

func TestOrdersInLog(t *testing.T) {
	const log = `I0102 03:04:05.000001       7 createinstance.go:47] "Received order of an instance" client="dev" group="a" instance=""
I0102 03:04:05.000002       7 createinstance.go:91] "On-demand instance is ordered" client="dev" tenant="default" instance="ond1" group="a"
I0102 03:04:05.000003       7 createinstance.go:47] "Received order of an instance" client="dev" group="a" instance=""
I0102 03:04:05.000004       7 createinstance.go:91] "On-demand instance is ordered" client="dev" tenant="default" instance="ond2" group="b"
`
	want := []Order{{Instance: "ond1", Group: "a"}, {Instance: "ond2", Group: "b"}}
	if orders := ordersIn([]byte(log)); !slices.Equal(orders, want) {
		t.Errorf("read %+v, want %+v", orders, want)
	}
}
