// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// shippedRules returns the rules that are shipped, as Prometheus reads them.
func shippedRules(t *testing.T) object {
	t.Helper()
	return parseRules(t, readRules(t))
}

// duration matches the durations of alerts, and the ranges and offsets of expressions.
var duration = regexp.MustCompile(`(\bfor: |\[|\boffset )(\d+)([mh])\b`)

// shortRules returns the rules that are shipped, with two seconds for each minute of their
// durations and nothing else changed.
func shortRules(t *testing.T) object {
	t.Helper()
	shipped := readRules(t)
	alerts := 0
	shortened := duration.ReplaceAllStringFunc(shipped, func(found string) string {
		if strings.HasPrefix(found, "for: ") {
			alerts++
		}
		parts := duration.FindStringSubmatch(found)
		number, err := strconv.Atoi(parts[2])
		require.NoError(t, err)
		return parts[1] + strconv.Itoa(2*number) + map[string]string{"m": "s", "h": "m"}[parts[3]]
	})
	require.Equal(t, strings.Count(shipped, " for: "), alerts, "alerts with a shorter duration")
	return parseRules(t, shortened)
}

func readRules(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "prometheus_rule.yaml"))
	require.NoError(t, err)
	return string(data)
}

func parseRules(t *testing.T, data string) object {
	t.Helper()
	var rules struct{ Spec object }
	require.NoError(t, yaml.Unmarshal([]byte(data), &rules))
	require.NotEmpty(t, rules.Spec)
	return rules.Spec
}
