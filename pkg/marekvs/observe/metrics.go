// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package observe reads the metrics of marekvs nodes, and keeps in memory what decisions
// need of earlier ones: rates, the highest load of a window, and the last change of nodes.
package observe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"nstance.dev/operator/pkg/marekvs/scale"
)

// Metrics of a node that the operator reads.
const (
	commandsTotal   = "marekvs_commands_total"
	underreplicated = "marekvs_cluster_underreplicated_partitions"
	clusterMembers  = "marekvs_cluster_members"
	effectiveRFMin  = "marekvs_cluster_effective_rf_min"
	joinGatePending = "marekvs_join_gate_pending_pids"
	rejoinActive    = "marekvs_rejoin_active"
	roundsTotal     = "marekvs_ae_rounds_total"
	diskTotal       = "marekvs_disk_total_bytes"
	diskAvailable   = "marekvs_disk_avail_bytes"
	writeStopped    = "marekvs_disk_write_stopped"
)

// names are those of the metrics. The others are skipped before they are parsed.
var names = map[string]bool{
	commandsTotal: true, underreplicated: true, clusterMembers: true, effectiveRFMin: true, joinGatePending: true,
	rejoinActive: true, roundsTotal: true, diskTotal: true, diskAvailable: true, writeStopped: true,
}

// Metrics are the metrics of one node. A nil field means that there is no signal.
type Metrics struct {
	scale.Sample
	// Commands is the number of commands that the node has executed.
	Commands *float64
	// Rounds is how many times it has compared its copies with those of others.
	Rounds *int64
}

// largest is the largest whole number below which a float64 has every whole number.
const largest = 1 << 53

// Parse reads metrics in the text format of Prometheus.
func Parse(text io.Reader) (*Metrics, error) {
	relevant, err := filter(text)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(relevant)
	if err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	all := samples{}
	for name, family := range families {
		for _, metric := range family.GetMetric() {
			all[name] = append(all[name], value(metric))
		}
	}
	return &Metrics{
		Sample: scale.Sample{
			Underreplicated:   all.count(underreplicated, math.Max),
			Members:           all.count(clusterMembers, math.Max),
			EffectiveReplicas: all.count(effectiveRFMin, math.Min),
			Joining:           larger(all.count(joinGatePending, math.Max), all.count(rejoinActive, math.Max)),
			DiskTotal:         all.number(diskTotal, math.Max),
			DiskAvailable:     all.number(diskAvailable, math.Min),
			WriteStopped:      all.count(writeStopped, math.Max),
		},
		Commands: all.number(commandsTotal, sum),
		Rounds:   all.count(roundsTotal, sum),
	}, nil
}

// filter returns the lines of the metrics that are read. A line break in the value of a
// label is escaped, so that a line is always one sample.
func filter(text io.Reader) (io.Reader, error) {
	var relevant bytes.Buffer
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxBody)
	for lines.Scan() {
		line := bytes.TrimLeft(lines.Bytes(), " \t")
		end := bytes.IndexAny(line, "{ \t")
		if end > 0 && names[string(line[:end])] {
			relevant.Write(line)
			relevant.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return &relevant, nil
}

func value(metric *dto.Metric) float64 {
	switch {
	case metric.Counter != nil:
		return metric.Counter.GetValue()
	case metric.Gauge != nil:
		return metric.Gauge.GetValue()
	case metric.Untyped != nil:
		return metric.Untyped.GetValue()
	}
	return math.NaN()
}

// samples are the values of metrics by name.
type samples map[string][]float64

func sum(a, b float64) float64 { return a + b }

// number returns the values of a metric as one, nil if there is none or one of them is not
// a whole number. No such value counts as 0.
func (s samples) number(name string, merge func(a, b float64) float64) *float64 {
	values := s[name]
	if len(values) == 0 {
		return nil
	}
	merged := values[0]
	for i, v := range values {
		if v < 0 || v > largest || v != math.Trunc(v) { // which NaN is too
			return nil
		}
		if i > 0 {
			merged = merge(merged, v)
		}
	}
	if merged > largest {
		return nil
	}
	return &merged
}

func (s samples) count(name string, merge func(a, b float64) float64) *int64 {
	merged := s.number(name, merge)
	if merged == nil {
		return nil
	}
	count := int64(*merged)
	return &count
}

func larger(a, b *int64) *int64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// errTooLong is the error of metrics with more than maxBody bytes.
var errTooLong = errors.New("the metrics are too long")

// maxBody is how many bytes of metrics are read.
const maxBody = 4 << 20
