// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command web is the server in the Pods of the tests on real nodes. It responds with the
// name of its Pod. When it is terminated, it is no longer ready, still serves for some
// seconds, and completes the requests that it has.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// grace is how long requests still arrive at a Pod that is terminating: clients learn of
// it later than the Pod.
const grace = 5 * time.Second

func main() {
	ignore := flag.Bool("ignore-termination", false, "serve until the process is killed")
	flag.Parse()
	if err := serve(*ignore); err != nil {
		log.Fatal(err)
	}
}

func serve(ignoreTermination bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if ignoreTermination {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	}
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 10 * time.Second, Handler: handler(ctx)}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		<-time.After(grace)
		stopped <- server.Shutdown(context.WithoutCancel(ctx))
	}()
	log.Printf("listening at %s", server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// handler serves until the server has shut down. It is ready until terminated is done.
func handler(terminated context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if terminated.Err() != nil {
			http.Error(w, "terminating", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
		fmt.Fprintln(w, os.Getenv("HOSTNAME"))
	})
	return mux
}
