// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// Call is a call that changes a group or deletes an instance, as a shard's server has
// received it.
type Call struct {
	Method string
	// Group is the group, or the group of the instance.
	Group string
	// Size is the size in an UpsertGroup.
	Size int32
	// Instance is the instance id in a DeleteInstance or an AcknowledgeDrained.
	Instance string
}

// Methods of calls.
const (
	UpsertGroup        = "UpsertGroup"
	DeleteGroup        = "DeleteGroup"
	DeleteInstance     = "DeleteInstance"
	AcknowledgeDrained = "AcknowledgeDrained"
)

// received matches the line that a server logs about each such call. It logs a call about a group
// before validation, and a call about an instance only if it has the instance.
var received = regexp.MustCompile(`(?m)\] "Received (group|deletion of group|deletion of instance|acknowledgement of a drain)"` +
	`.*?(?: instance="([^"]*)")? group="([^"]*)"(?: size=(\d+))?.*$`)

var methods = map[string]string{
	"group":                      UpsertGroup,
	"deletion of group":          DeleteGroup,
	"deletion of instance":       DeleteInstance,
	"acknowledgement of a drain": AcknowledgeDrained,
}

// Calls returns the calls that a shard's servers have received since the
// installation, also those that were rejected, in the order in which they arrived.
func (n *Installation) Calls(shardID string) ([]Call, error) {
	log, err := n.serverLog(shardID)
	if err != nil {
		return nil, err
	}
	return callsIn(log)
}

// serverLog returns what the servers of a shard have logged since the installation.
func (n *Installation) serverLog(shardID string) ([]byte, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, err
	}
	log, err := os.ReadFile(n.cp.Component(shard.Component()).LogPath())
	if err != nil {
		return nil, fmt.Errorf("read the log of shard %s: %w", shardID, err)
	}
	return log, nil
}

func callsIn(log []byte) ([]Call, error) {
	var calls []Call
	for _, line := range received.FindAllSubmatch(log, -1) {
		call := Call{Method: methods[string(line[1])], Instance: string(line[2]), Group: string(line[3])}
		if call.Method == UpsertGroup {
			size, err := strconv.ParseInt(string(line[4]), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("read a shard's log: %q: %w", line[0], err)
			}
			call.Size = int32(size)
		}
		calls = append(calls, call)
	}
	return calls, nil
}

// Creation is an on-demand instance that a shard has created.
type Creation struct {
	Instance string
	Group    string
}

// created matches the line that a server logs about each such instance, once: a repeated call
// creates nothing.
var created = regexp.MustCompile(`(?m)\] "Creating on-demand instance".* instance="([^"]*)" group="([^"]*)"`)

// Creations returns the on-demand instances that a shard's servers have created
// since the installation, also those that were deleted since.
func (n *Installation) Creations(shardID string) ([]Creation, error) {
	log, err := n.serverLog(shardID)
	if err != nil {
		return nil, err
	}
	return creationsIn(log), nil
}

func creationsIn(log []byte) []Creation {
	var creations []Creation
	for _, line := range created.FindAllSubmatch(log, -1) {
		creations = append(creations, Creation{Instance: string(line[1]), Group: string(line[2])})
	}
	return creations
}

// Records returns the instances that a shard has stored (docs/server.md#records).
func (n *Installation) Records(shardID string) ([]instance.Record, error) {
	folder := filepath.Join(n.Bucket(), filepath.FromSlash(storage.InstancePrefix(shardID)))
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // before the first instance
	}
	if err != nil {
		return nil, fmt.Errorf("list the instances of shard %s: %w", shardID, err)
	}
	var records []instance.Record
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".json" {
			continue // being written
		}
		data, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since it was listed
		}
		var record instance.Record
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			return nil, fmt.Errorf("read the instance in %s: %w", entry.Name(), err)
		}
		records = append(records, record)
	}
	return records, nil
}

// Metric reads the metrics that an operator or a server serves at url, and returns the sum of some series as
// Metrics.Sum does.
func Metric(ctx context.Context, url, name string, labels map[string]string) (float64, error) {
	metrics, err := ReadMetrics(ctx, url)
	return metrics.Sum(name, labels), err
}

// Metrics are the metrics of a process at one time.
type Metrics map[string]*dto.MetricFamily

// ReadMetrics reads the metrics that an operator or a server serves at url.
func ReadMetrics(ctx context.Context, url string) (Metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s/metrics: %s", url, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", url, err)
	}
	return families, nil
}

// Sum returns the sum of the series of metric name whose labels contain labels. The value of a histogram is the
// sum of its observations. A missing metric is zero.
func (m Metrics) Sum(name string, labels map[string]string) float64 {
	var sum float64
	for _, series := range m[name].GetMetric() {
		matching := 0
		for _, label := range series.GetLabel() {
			if want, ok := labels[label.GetName()]; ok && want == label.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetHistogram().GetSampleSum()
		}
	}
	return sum
}
