// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package observe reads the metrics of marekvs nodes, and remembers earlier values for
// decisions: rates, the highest load of a window, and the last change of nodes.
package observe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"nstance.dev/operator/pkg/marekvs/scale"
)

// Names of the metrics of a node that the operator reads.
const (
	commandsTotal   = "marekvs_commands_total"
	underreplicated = "marekvs_cluster_underreplicated_partitions"
	clusterMembers  = "marekvs_cluster_members"
	effectiveRFMin  = "marekvs_cluster_effective_rf_min"
	joinGatePending = "marekvs_join_gate_pending_pids"
	rejoinActive    = "marekvs_rejoin_active"
	roundsTotal     = "marekvs_ae_rounds_total"
	repairedTotal   = "marekvs_ae_repair_ops_total"
	bootstrapsTotal = "marekvs_bootstraps_completed_total"
	bootstrapBytes  = "marekvs_bootstrap_bytes_sent_total"
	diskTotal       = "marekvs_disk_total_bytes"
	diskAvailable   = "marekvs_disk_avail_bytes"
	writeStopped    = "marekvs_disk_write_stopped"
)

// names selects the metrics that are parsed. Other metrics are skipped before they are
// parsed.
var names = map[string]bool{
	commandsTotal: true, underreplicated: true, clusterMembers: true, effectiveRFMin: true, joinGatePending: true,
	rejoinActive: true, roundsTotal: true, repairedTotal: true, bootstrapsTotal: true, bootstrapBytes: true, diskTotal: true, diskAvailable: true, writeStopped: true,
}

// Metrics has the metrics of one node. A nil field means that the metric is missing or
// invalid.
type Metrics struct {
	scale.Sample
	// Commands is the number of commands that the node has executed.
	Commands *float64
	// Rounds is how many times the node has begun to compare its copies with the copies of other
	// nodes.
	Rounds *int64
	// Moved rises while copies move to or from the node: records that it has got in repairs,
	// partitions that it has got when it joined, and bytes that it has sent to joining nodes.
	Moved *int64
}

// largest is the largest whole number up to which a float64 represents every whole number.
const largest = 1 << 53

// Parse reads metrics in the text format of Prometheus
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
func Parse(text io.Reader) (*Metrics, error) {
	all, err := readSamples(text)
	if err != nil {
		return nil, err
	}
	return &Metrics{
		Sample: scale.Sample{
			Underreplicated:   all.count(underreplicated, most),
			Members:           all.count(clusterMembers, most),
			EffectiveReplicas: all.count(effectiveRFMin, least),
			Joining:           larger(all.count(joinGatePending, most), all.count(rejoinActive, most)),
			DiskTotal:         all.number(diskTotal, most),
			DiskAvailable:     all.number(diskAvailable, least),
			WriteStopped:      all.count(writeStopped, most),
		},
		Commands: all.number(commandsTotal, sum),
		Rounds:   all.count(roundsTotal, sum),
		Moved:    all.moved(),
	}, nil
}

// moved adds up the counters of Moved. It returns nil without the counter of repairs: only that
// counter shows how the partitions of a removed node get their copies on a node that has restarted.
func (s samples) moved() *int64 {
	total := s.count(repairedTotal, sum)
	if total == nil {
		return nil
	}
	for _, name := range []string{bootstrapsTotal, bootstrapBytes} {
		if more := s.count(name, sum); more != nil {
			*total += *more
		}
	}
	return total
}

// Limits of the metrics of a node. The user of a cluster chooses the program that sends them, and
// clients choose labels: the store keeps a counter of calls, a counter of errors and a histogram for
// every name of a command that a client has ever sent, also of a name that is no command
// (github.com/yannick/marekvs, commit defc648, crates/marekvs-engine/src/metrics.rs:371). So long lines
// and many series of commands must not hide the other metrics.
const (
	// maxBody is the maximum size of a response, in bytes. Only a line of it is in memory.
	maxBody = 16 << 20
	// maxLine is the maximum length of a line, in bytes. Longer lines are skipped: only names of
	// commands are that long.
	maxLine = 8 << 10
	// maxSamples is the maximum number of samples of a metric in names. If there are more commands,
	// their rate is not known.
	maxSamples = 10_000
)

// readSamples returns the samples of the metrics in names. The format escapes line breaks in label
// values, so each line is one sample. It is added up when it is read.
func readSamples(text io.Reader) (samples, error) {
	all := samples{}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	lines := bufio.NewReaderSize(text, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = skipLine(lines)
			line = nil
		}
		if len(line) > 0 {
			if err := all.add(&parser, line); err != nil {
				return nil, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read metrics: %w", err)
		}
	}
}

// skipLine reads to the end of a line that is too long.
func skipLine(lines *bufio.Reader) error {
	for {
		if _, err := lines.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// samples merges the samples of each metric, by name.
type samples map[string]*merged

// merged has the samples of a metric.
type merged struct {
	samples          int
	sum, least, most float64
	// invalid is true if a sample is no whole number or cannot be read, or if there are too many.
	invalid bool
}

// add adds the sample in a line. A sample that cannot be read is an error: a missing gauge might mean
// that nothing is wrong. Clients choose the labels of commands, and can only make their rate unknown.
func (s samples) add(parser *expfmt.TextParser, line []byte) error {
	line = bytes.Trim(line, " \t\r\n")
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 || !names[string(line[:end])] {
		return nil
	}
	name := string(line[:end])
	metric := s[name]
	if metric == nil {
		metric = &merged{}
		s[name] = metric
	}
	if metric.samples++; metric.samples > maxSamples {
		metric.invalid = true
		if name != commandsTotal {
			return fmt.Errorf("read metrics: %s has more than %d samples", name, maxSamples)
		}
		return nil
	}
	families, err := parser.TextToMetricFamilies(io.MultiReader(bytes.NewReader(line), strings.NewReader("\n")))
	if err != nil {
		metric.invalid = true
		if name != commandsTotal {
			return fmt.Errorf("parse metrics: %w", err)
		}
		return nil
	}
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			metric.merge(value(sample))
		}
	}
	return nil
}

func (m *merged) merge(v float64) {
	if v < 0 || v > largest || v != math.Trunc(v) { // true for NaN too
		m.invalid = true
		return
	}
	if m.samples == 1 {
		m.least = v
	}
	m.sum, m.least, m.most = m.sum+v, min(m.least, v), max(m.most, v)
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

func sum(m *merged) float64   { return m.sum }
func least(m *merged) float64 { return m.least }
func most(m *merged) float64  { return m.most }

// number returns the merged value of a metric. It returns nil, not 0, if the metric is missing or
// invalid.
func (s samples) number(name string, of func(*merged) float64) *float64 {
	metric := s[name]
	if metric == nil || metric.invalid || of(metric) > largest {
		return nil
	}
	number := of(metric)
	return &number
}

func (s samples) count(name string, of func(*merged) float64) *int64 {
	number := s.number(name, of)
	if number == nil {
		return nil
	}
	count := int64(*number)
	return &count
}

func larger(a, b *int64) *int64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// ScrapeOptions configures a Scraper.
type ScrapeOptions struct {
	// Port is the port of the metrics of an address without a port.
	Port int
	// Timeout bounds the scrape of one node.
	Timeout time.Duration
	// Parallel is the number of nodes of a cluster that are scraped at a time.
	Parallel int
}

// Scraper reads the metrics of nodes.
type Scraper struct {
	options ScrapeOptions
	client  *http.Client
	// open has a slot for each response that is read.
	open chan struct{}
}

// maxOpen is how many nodes of all clusters are read at a time. Each takes some ten KiB.
const maxOpen = 512

// Scrape is the metrics of a node, or the error of reading them.
type Scrape struct {
	Metrics *Metrics
	// At is the time of the response.
	At  time.Time
	Err error
}

// NewScraper returns a scraper.
func NewScraper(options ScrapeOptions) *Scraper {
	return &Scraper{
		options: options,
		open:    make(chan struct{}, maxOpen),
		client: &http.Client{
			Transport: &http.Transport{
				// Pods are called directly, and seldom enough that connections need not
				// stay open.
				Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Scrape reads the metrics of the nodes with these IP addresses, with or without a port, at the same
// time, and returns the results in their order. The limit Parallel is per call, so nodes that do not
// respond do not delay other clusters, unless they are more than maxOpen.
func (s *Scraper) Scrape(ctx context.Context, addresses []string) []Scrape {
	results := make([]Scrape, len(addresses))
	slots := make(chan struct{}, s.options.Parallel)
	var running sync.WaitGroup
	for i, address := range addresses {
		running.Go(func() {
			for _, slots := range []chan struct{}{slots, s.open} {
				select {
				case slots <- struct{}{}:
					defer func() { <-slots }()
				case <-ctx.Done():
					results[i].Err = ctx.Err()
					return
				}
			}
			results[i].Metrics, results[i].Err = s.scrape(ctx, address)
			results[i].At = time.Now()
		})
	}
	running.Wait()
	return results
}

func (s *Scraper) scrape(ctx context.Context, address string) (*Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, strconv.Itoa(s.options.Port))
	}
	from := url.URL{Scheme: "http", Host: address, Path: "/metrics"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", from.Host, err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", from.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: HTTP status %s", from.Host, response.Status)
	}
	body := &io.LimitedReader{R: response.Body, N: maxBody + 1}
	metrics, err := Parse(body)
	if body.N <= 0 {
		err = fmt.Errorf("the metrics are too long, at most %d bytes are allowed", maxBody)
	}
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", from.Host, err)
	}
	return metrics, nil
}
