// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package observe reads the metrics of marekvs nodes, and remembers earlier values for
// decisions: rates, the highest load of a window, and the last change of nodes.
package observe

import (
	"bufio"
	"bytes"
	"context"
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
// up to --scrape-parallel nodes of each cluster are read at a time.
const (
	// maxBody is the maximum size of a response, in bytes.
	maxBody = 256 << 10
	// maxLine is the maximum length of a line, in bytes.
	maxLine = 8 << 10
	// maxSamples is the maximum number of samples of the metrics in names. There is one for each
	// kind of command.
	maxSamples = 1000
)

// readSamples returns the samples of the metrics in names. The format escapes line breaks in label
// values, so each line is one sample. A line is parsed when it is read: only its value is kept.
func readSamples(text io.Reader) (samples, error) {
	all, count := samples{}, 0
	parser := expfmt.NewTextParser(model.UTF8Validation)
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := bytes.TrimLeft(lines.Bytes(), " \t")
		if end := bytes.IndexAny(line, "{ \t"); end <= 0 || !names[string(line[:end])] {
			continue
		}
		if count++; count > maxSamples {
			return nil, fmt.Errorf("read metrics: there are more than %d samples of the metrics that the operator reads", maxSamples)
		}
		families, err := parser.TextToMetricFamilies(io.MultiReader(bytes.NewReader(line), strings.NewReader("\n")))
		if err != nil {
			return nil, fmt.Errorf("parse metrics: %w", err)
		}
		for name, family := range families {
			for _, metric := range family.GetMetric() {
				all[name] = append(all[name], value(metric))
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w, at most %d bytes in a line are allowed", err, maxLine)
	}
	return all, nil
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

// samples has the values of the series of each metric, by name.
type samples map[string][]float64

func sum(a, b float64) float64 { return a + b }

// number merges the values of a metric into one value. It returns nil, not 0, if the metric
// is missing or a value is no whole number.
func (s samples) number(name string, merge func(a, b float64) float64) *float64 {
	values := s[name]
	if len(values) == 0 {
		return nil
	}
	merged := values[0]
	for i, v := range values {
		if v < 0 || v > largest || v != math.Trunc(v) { // true for NaN too
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

// ScrapeOptions configures a Scraper.
type ScrapeOptions struct {
	// Port is the port of the metrics.
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
}

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

// Scrape reads the metrics of the nodes with these IP addresses at the same time, and
// returns the results in their order. The limit Parallel is per call, so nodes that do not
// respond do not delay other clusters.
func (s *Scraper) Scrape(ctx context.Context, addresses []string) []Scrape {
	results := make([]Scrape, len(addresses))
	slots := make(chan struct{}, s.options.Parallel)
	var running sync.WaitGroup
	for i, address := range addresses {
		running.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				results[i].Err = ctx.Err()
				return
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
	from := url.URL{Scheme: "http", Host: net.JoinHostPort(address, strconv.Itoa(s.options.Port)), Path: "/metrics"}
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
