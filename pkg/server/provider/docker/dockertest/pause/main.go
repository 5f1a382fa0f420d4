// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command pause runs until it is stopped. It is the only program in the image of
// the tests.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "fail" {
		os.Exit(3)
	}
	if len(os.Args) > 3 && os.Args[1] == "request" {
		if err := request(os.Args[2], os.Args[3], os.Args[4:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}

// request prints the status of a response and, in the next lines, its body. headers are
// NAME=VALUE.
func request(method, url string, headers []string) error {
	r, err := http.NewRequest(method, url, http.NoBody)
	if err != nil {
		return err
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, "=")
		r.Header.Set(name, value)
	}
	response, err := (&http.Client{Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	fmt.Printf("%d\n%s", response.StatusCode, body)
	return err
}
