// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// ScrapeOptions are the settings of a Scraper.
type ScrapeOptions struct {
	// Port is the port of the metrics.
	Port int
	// Timeout bounds the scrape of one node.
	Timeout time.Duration
	// Parallel is how many nodes of a cluster are scraped at a time.
	Parallel int
}

// Scraper reads the metrics of nodes.
type Scraper struct {
	options ScrapeOptions
	client  *http.Client
}

// Scrape is what a node reported, or why it did not.
type Scrape struct {
	Metrics *Metrics
	// At is when the node responded.
	At  time.Time
	Err error
}

// NewScraper returns a scraper.
func NewScraper(options ScrapeOptions) *Scraper {
	return &Scraper{
		options: options,
		client: &http.Client{
			Transport: &http.Transport{
				// Addresses of Pods are used directly, once in many seconds.
				Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Scrape reads the metrics of the nodes with these IP addresses at the same time, and
// returns the results in their order. Clusters do not wait for each other: nodes of one that do
// not respond delay no other.
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
		err = errTooLong
	}
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", from.Host, err)
	}
	return metrics, nil
}
