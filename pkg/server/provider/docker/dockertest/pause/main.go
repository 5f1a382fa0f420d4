// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command pause runs until it is stopped. It is the only program in the image of
// the tests.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "fail" {
		os.Exit(3)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
