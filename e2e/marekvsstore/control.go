// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvsstore

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// clustersPath is the path of what another process sets.
const clustersPath = "/clusters/"

// What another process may set.
const (
	rateKey            = "rate"
	underreplicatedKey = "underreplicated"
)

// control sets the rate or the under-replicated partitions of a cluster.
func (s *Store) control(w http.ResponseWriter, r *http.Request) {
	cluster := r.PathValue("cluster")
	for key, set := range map[string]func(float64){
		rateKey:            func(value float64) { s.SetRate(cluster, value) },
		underreplicatedKey: func(value float64) { s.SetUnderreplicated(cluster, int(value)) },
	} {
		text := r.URL.Query().Get(key)
		if text == "" {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil || !(value >= 0 && value <= 1e9) {
			http.Error(w, key+" must be a number from 0 to 1000000000", http.StatusBadRequest)
			return
		}
		set(value)
	}
}

// Remote is the store of another process.
type Remote struct{ Port int }

// SetRate sets the commands per second of a cluster.
func (r Remote) SetRate(ctx context.Context, cluster, rate string) error {
	return r.set(ctx, cluster, rateKey, rate)
}

// SetUnderreplicated sets the number of partitions of a cluster with too few owners.
func (r Remote) SetUnderreplicated(ctx context.Context, cluster, partitions string) error {
	return r.set(ctx, cluster, underreplicatedKey, partitions)
}

func (r Remote) set(ctx context.Context, cluster, key, value string) error {
	to := fmt.Sprintf("http://127.0.0.1:%d%s%s?%s", r.Port, clustersPath, url.PathEscape(cluster), url.Values{key: {value}}.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("set %s of %s: %s", key, cluster, strings.TrimSpace(string(message)))
	}
	return nil
}
