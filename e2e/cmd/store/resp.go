// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/redcon"
)

// commandTimeout limits one command.
const commandTimeout = 5 * time.Second

// serveRESP serves clients until ctx is done: PING, GET and SET.
func (n *node) serveRESP(ctx context.Context) error {
	server := redcon.NewServer(fmt.Sprintf(":%d", respPort), func(c redcon.Conn, command redcon.Command) {
		n.serveCommand(ctx, c, command.Args)
	}, nil, nil)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

func (n *node) serveCommand(ctx context.Context, c redcon.Conn, args [][]byte) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	name := strings.ToLower(string(args[0]))
	if count := n.commands[name]; count != nil {
		count.add()
	}
	switch {
	case name == "ping":
		c.WriteString("PONG")
	case name == "get" && len(args) == 2:
		e, found, err := n.read(ctx, string(args[1]))
		switch {
		case err != nil:
			c.WriteError("ERR " + err.Error())
		case found:
			c.WriteBulkString(e.Value)
		default:
			c.WriteNull()
		}
	case name == "set" && len(args) == 3:
		if err := n.write(ctx, string(args[1]), string(args[2])); err != nil {
			c.WriteError("ERR " + err.Error())
			return
		}
		c.WriteString("OK")
	default:
		c.WriteError(fmt.Sprintf("ERR unknown command %q with %d arguments", name, len(args)-1))
	}
}
