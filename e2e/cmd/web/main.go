// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command web is the server in the Pods of the tests on real nodes. It responds with the
// name of its Pod, and takes no more requests once it is terminated, but completes those
// that it has.
package main

import (
	"context"
	"errors"
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
const grace = 3 * time.Second

func main() {
	if err := serve(); err != nil {
		log.Fatal(err)
	}
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(respond)}
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

func respond(w http.ResponseWriter, r *http.Request) {
	log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
	fmt.Fprintln(w, os.Getenv("HOSTNAME"))
}
