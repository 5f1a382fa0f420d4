// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/scale"
)

const page = `# HELP marekvs_commands_total commands
# TYPE marekvs_commands_total counter
marekvs_commands_total{cmd="get"} 10
marekvs_commands_total{cmd="set",other="1"} 5 1700000000000
marekvs_commands_total_other 7
# TYPE marekvs_cluster_underreplicated_partitions gauge
marekvs_cluster_underreplicated_partitions 0
marekvs_cluster_members 3
marekvs_cluster_effective_rf_min 2
marekvs_join_gate_pending_pids 0
marekvs_rejoin_active 1
marekvs_ae_rounds_total 12
marekvs_ae_repair_ops_total 100
marekvs_bootstraps_completed_total 20
marekvs_bootstrap_bytes_sent_total 3
marekvs_disk_total_bytes 1e10
marekvs_disk_avail_bytes 4e9
marekvs_disk_write_stopped 0
another{le="+Inf"} NaN
`

func TestParse(t *testing.T) {
	got, err := Parse(strings.NewReader(page))
	require.NoError(t, err)
	assert.Equal(t, &Metrics{
		Sample: scale.Sample{
			Underreplicated: ptr.To[int64](0), Members: ptr.To[int64](3), EffectiveReplicas: ptr.To[int64](2), Joining: ptr.To[int64](1),
			DiskTotal: ptr.To(1e10), DiskAvailable: ptr.To(4e9), WriteStopped: ptr.To[int64](0),
		},
		Commands: ptr.To(15.0), Rounds: ptr.To[int64](12), Moved: ptr.To[int64](123),
	}, got)
}

// Only the counter of repairs must exist.
func TestMoved(t *testing.T) {
	for text, want := range map[string]*int64{
		"marekvs_ae_repair_ops_total 5\n":                                       ptr.To[int64](5),
		"marekvs_ae_repair_ops_total 5\nmarekvs_bootstrap_bytes_sent_total 2\n": ptr.To[int64](7),
		"marekvs_bootstrap_bytes_sent_total 2\n":                                nil,
		"marekvs_ae_repair_ops_total NaN\n":                                     nil,
	} {
		got, err := Parse(strings.NewReader(text))
		require.NoError(t, err)
		assert.Equal(t, want, got.Moved, text)
	}
}

// Names of commands that clients send become values of labels.
func TestLabelsAreNoSamples(t *testing.T) {
	for _, text := range []string{
		`marekvs_commands_total{cmd="x} 1e18 "} 1`,
		`marekvs_commands_total{cmd="x\nmarekvs_commands_total 1e18"} 1`,
		`marekvs_commands_total{cmd="\"} 1e18 #"} 1`,
		`marekvs_commands_total{cmd="\\"} 1`,
		`marekvs_commands_total { cmd = "}" , } 1`,
	} {
		got, err := Parse(strings.NewReader(text + "\n"))
		require.NoError(t, err, text)
		assert.Equal(t, ptr.To(1.0), got.Commands, text)
	}
}

func TestInvalidValuesAreNoSignal(t *testing.T) {
	for _, value := range []string{"NaN", "+Inf", "-Inf", "-1", "0.5", "1e300"} {
		text := "marekvs_commands_total{cmd=\"a\"} 1\nmarekvs_commands_total{cmd=\"b\"} " + value +
			"\nmarekvs_cluster_underreplicated_partitions " + value + "\nmarekvs_disk_total_bytes " + value + "\n"
		got, err := Parse(strings.NewReader(text))
		require.NoError(t, err, value)
		assert.Equal(t, &Metrics{}, got, value)
	}
	got, err := Parse(strings.NewReader(""))
	require.NoError(t, err)
	assert.Equal(t, &Metrics{}, got)
}

func TestOtherMetricsAreNotParsed(t *testing.T) {
	got, err := Parse(strings.NewReader("this is { no metric\n  marekvs_cluster_members 2\n"))
	require.NoError(t, err)
	assert.Equal(t, ptr.To[int64](2), got.Members)
	_, err = Parse(strings.NewReader("marekvs_cluster_members {\n"))
	require.Error(t, err)
}

// Clients choose the names of commands. Many of them, or long ones, hide no other metric.
func TestClientsCannotHideANode(t *testing.T) {
	const series = "marekvs_commands_total{cmd=\"%d\"} 1\n"
	var commands strings.Builder
	for n := range maxSamples {
		_, _ = fmt.Fprintf(&commands, series, n)
	}
	got, err := Parse(strings.NewReader(commands.String()))
	require.NoError(t, err)
	assert.Equal(t, ptr.To[float64](maxSamples), got.Commands)

	_, _ = fmt.Fprintf(&commands, series, maxSamples)
	long := strings.Repeat("x", 300<<10)
	for name, c := range map[string]struct {
		text     string
		commands *float64
	}{
		"too many commands":           {commands.String(), nil},
		"a command without UTF-8":     {"marekvs_commands_total{cmd=\"\xff\"} 1\n", nil},
		"a command that is no sample": {"marekvs_commands_total{cmd= 1\n", nil},
		"a long command": {
			strings.Repeat("marekvs_command_duration_seconds_bucket{cmd=\""+long+"\",le=\"1\"} 1\n", 14) +
				"marekvs_commands_total{cmd=\"" + long + "\"} 1\nmarekvs_commands_total{cmd=\"get\"} 5\n", ptr.To(5.0),
		},
	} {
		for _, text := range []string{c.text + "marekvs_cluster_members 3\n", "marekvs_cluster_members 3\n" + c.text} {
			require.Less(t, len(text), maxBody)
			got, err := Parse(strings.NewReader(text))
			require.NoError(t, err, name)
			assert.Equal(t, ptr.To[int64](3), got.Members, name)
			assert.Equal(t, c.commands, got.Commands, name)
		}
	}
}

// The user of a cluster chooses the program that sends the metrics of its nodes. A gauge that cannot be
// read is no missing gauge.
func TestMetricsAreLimited(t *testing.T) {
	for want, text := range map[string]string{
		"marekvs_cluster_members has more than 10000 samples": strings.Repeat("marekvs_cluster_members 3\n", maxSamples+1),
		"parse metrics": "marekvs_cluster_members{ 3\n",
	} {
		_, err := Parse(strings.NewReader(text))
		require.ErrorContains(t, err, want)
	}
}

// The last line may have no end, and lines may end in CR LF.
func TestLines(t *testing.T) {
	long := "other{x=\"" + strings.Repeat("x", 3*maxLine) + "\"} 1"
	for _, text := range []string{
		"marekvs_cluster_members 3", "marekvs_cluster_members 3\r\n", "\n\nmarekvs_cluster_members 3", long + "\nmarekvs_cluster_members 3\n" + long,
	} {
		got, err := Parse(strings.NewReader(text))
		require.NoError(t, err)
		assert.Equal(t, ptr.To[int64](3), got.Members, "%.40q", text)
	}
}

// Many nodes are read at the same time: a response must not take much more memory than a small
// one. Only its values are kept.
func TestALargeResponseTakesLittleMemory(t *testing.T) {
	page := func(samples, length int) string {
		var text strings.Builder
		for n := range samples {
			_, _ = fmt.Fprintf(&text, "marekvs_commands_total{cmd=\"%0*d\"} 1\n", length, n)
		}
		return text.String()
	}
	// read returns by how much a response, of which the last byte has not arrived, enlarges the heap.
	read := func(text string) uint64 {
		heap := func() uint64 {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return stats.HeapAlloc
		}
		before, during := heap(), uint64(0)
		last := readerFunc(func([]byte) (int, error) {
			during = heap()
			return 0, io.EOF
		})
		_, err := Parse(io.MultiReader(strings.NewReader(text), last))
		require.NoError(t, err)
		runtime.KeepAlive(text)
		return during - min(before, during)
	}
	small, large := page(10, 200), page(maxSamples, 1000)
	require.Greater(t, len(large), maxBody/2)
	ofSmall, ofLarge := read(small), read(large)
	t.Logf("%d bytes take %d, %d bytes take %d", len(small), ofSmall, len(large), ofLarge)
	assert.Less(t, ofLarge, ofSmall+256<<10, "only a line is in memory")
}

// The operator takes at most 64 MiB with usual pages, and 1.5 times as much with the worst pages that users
// and clients can make, even if all that may be open are read at the same time.
func TestHostilePagesAreWithinTheMemory(t *testing.T) {
	const pages, limit = 64, 32 << 20
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	long := strings.Repeat("x", maxLine-100)
	for name, text := range map[string]string{
		"a line as large as a page":        "marekvs_commands_total{cmd=\"" + strings.Repeat("x", maxBody/2) + "\"} 1\n",
		"the longest lines":                strings.Repeat("marekvs_commands_total{cmd=\""+long+"\"} 1\n", 200),
		"a line with many labels":          "marekvs_commands_total{" + strings.Repeat("a=\"\",", 1300) + "b=\"\"} 1\n",
		"lines of every metric, and types": strings.Repeat(page, 20),
		"many commands":                    strings.Repeat("marekvs_commands_total{cmd=\"get\"} 1\n", maxSamples+1),
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			opened, finish := make(chan struct{}), make(chan struct{})
			var readers sync.WaitGroup
			for range pages {
				last := readerFunc(func([]byte) (int, error) {
					opened <- struct{}{}
					<-finish
					return 0, io.EOF
				})
				readers.Go(func() { _, _ = Parse(io.MultiReader(strings.NewReader(text), last)) })
			}
			for range pages {
				<-opened
			}
			during := heap()
			each := (during - min(before, during)) / pages
			close(finish)
			readers.Wait()
			runtime.KeepAlive(text)
			t.Logf("%d bytes a page", each)
			assert.Less(t, each*maxOpen, uint64(limit))
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func FuzzParse(f *testing.F) {
	f.Add(page)
	f.Add(`marekvs_commands_total{cmd="x} 1e18 "} 1`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		if got.Commands != nil && (*got.Commands < 0 || *got.Commands > largest) {
			t.Errorf("%q has %v commands", text, *got.Commands)
		}
		if got.Underreplicated != nil && *got.Underreplicated < 0 {
			t.Errorf("%q has %d partitions", text, *got.Underreplicated)
		}
	})
}

// node serves metrics at an address of this machine, and returns a scraper for its port.
func node(t *testing.T, address string, handler http.HandlerFunc) *Scraper {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Skipf("there is no address %s: %v", address, err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
	return NewScraper(ScrapeOptions{Port: listener.Addr().(*net.TCPAddr).Port, Timeout: time.Minute, Parallel: 64})
}

func TestScrape(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		s := node(t, address, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics" || r.Header.Get("Accept-Encoding") != "" {
				http.Error(w, "", http.StatusBadRequest)
				return
			}
			// In two chunks.
			_, _ = fmt.Fprint(w, "marekvs_cluster_mem")
			_ = http.NewResponseController(w).Flush()
			_, _ = fmt.Fprint(w, "bers 3\n")
		})
		got := s.Scrape(t.Context(), []string{address})
		require.NoError(t, got[0].Err)
		assert.Equal(t, ptr.To[int64](3), got[0].Metrics.Members)
		assert.False(t, got[0].At.IsZero())
		port := s.options.Port
		s.options.Port = 1
		got = s.Scrape(t.Context(), []string{net.JoinHostPort(address, strconv.Itoa(port)), address})
		require.NoError(t, got[0].Err, "the port of the address")
		require.Error(t, got[1].Err)
	}
}

func TestScrapeFails(t *testing.T) {
	for what, handler := range map[string]http.HandlerFunc{
		"HTTP status 500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"HTTP status 302": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
		"HTTP status 204": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, "marekvs_cluster_members 3\n", strings.Repeat("x 1\n", maxBody/4))
		},
		"EOF": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = fmt.Fprint(w, "marekvs_cluster_members 3\n")
		},
		"parse metrics": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "marekvs_cluster_members x\n") },
	} {
		got := node(t, "127.0.0.1", handler).Scrape(t.Context(), []string{"127.0.0.1"})
		require.ErrorContains(t, got[0].Err, what)
		assert.Nil(t, got[0].Metrics)
	}
}

// Nodes that do not respond are waited for at the same time, and not one after another.
// Each responds only when all of them have been called.
func TestNodesAreScrapedAtTheSameTime(t *testing.T) {
	const nodes = 20
	var called atomic.Int32
	all := make(chan struct{})
	s := node(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		if called.Add(1) == nodes {
			close(all)
		}
		select {
		case <-all:
			_, _ = fmt.Fprintln(w, "marekvs_cluster_members 20")
		case <-r.Context().Done():
		}
	})
	addresses := make([]string, nodes)
	for i := range addresses {
		addresses[i] = "127.0.0.1"
	}
	for _, got := range s.Scrape(t.Context(), addresses) {
		require.NoError(t, got.Err)
	}
}

func TestScrapesAreBounded(t *testing.T) {
	var running, most atomic.Int32
	s := node(t, "127.0.0.1", func(w http.ResponseWriter, _ *http.Request) {
		now := running.Add(1)
		defer running.Add(-1)
		for {
			before := most.Load()
			if now <= before || most.CompareAndSwap(before, now) {
				break
			}
		}
		_, _ = fmt.Fprintln(w, "marekvs_cluster_members 1")
	})
	s.options.Parallel = 2
	for _, got := range s.Scrape(t.Context(), slices.Repeat([]string{"127.0.0.1"}, 50)) {
		require.NoError(t, got.Err)
	}
	assert.LessOrEqual(t, most.Load(), int32(2))
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// Responses of all clusters together are limited.
func TestOpenResponsesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewScraper(ScrapeOptions{Port: 1, Timeout: time.Hour, Parallel: 64})
		require.Equal(t, maxOpen, cap(s.open))
		s.open = make(chan struct{}, 3)
		var running atomic.Int32
		release := make(chan struct{})
		s.client.Transport = roundTripFunc(func(*http.Request) (*http.Response, error) {
			running.Add(1)
			<-release
			return nil, errors.New("there is no node")
		})
		var clusters sync.WaitGroup
		for range 8 {
			clusters.Go(func() { s.Scrape(t.Context(), slices.Repeat([]string{"127.0.0.1"}, 10)) })
		}
		synctest.Wait()
		assert.Equal(t, int32(3), running.Load())
		close(release)
		clusters.Wait()
		assert.Equal(t, int32(80), running.Load(), "each waits for its turn")
	})
}

// Nodes that do not respond do not delay the nodes of other clusters.
func TestClustersAreScrapedIndependently(t *testing.T) {
	called, finished := make(chan struct{}, 10), make(chan struct{})
	silent := node(t, "127.0.0.1", func(_ http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		select {
		case <-finished:
		case <-r.Context().Done():
		}
	})
	other := node(t, "127.0.0.1", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "marekvs_cluster_members 1") })
	release := sync.OnceFunc(func() { close(finished) })
	t.Cleanup(release)
	shared := NewScraper(ScrapeOptions{Port: silent.options.Port, Timeout: time.Minute, Parallel: 2})
	waiting := make(chan []Scrape, 1)
	go func() { waiting <- shared.Scrape(t.Context(), slices.Repeat([]string{"127.0.0.1"}, 2)) }()
	<-called
	<-called
	toOther := *shared
	toOther.options.Port = other.options.Port
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, got := range toOther.Scrape(ctx, slices.Repeat([]string{"127.0.0.1"}, 8)) {
		require.NoError(t, got.Err)
	}
	release()
	<-waiting
}

func TestANodeThatDoesNotRespondTimesOut(t *testing.T) {
	s := node(t, "127.0.0.1", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s.options.Timeout = 50 * time.Millisecond
	got := s.Scrape(t.Context(), []string{"127.0.0.1"})
	require.ErrorContains(t, got[0].Err, "deadline")
}
