// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package qmp is a client of the QEMU Machine Protocol: a stream of JSON objects, one a line
// (https://www.qemu.org/docs/master/interop/qmp-spec.html). It sends one command at a time
// and ignores events.
package qmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
)

// maxReceived limits the bytes that one connection receives.
const maxReceived = 1 << 20

// Client is a connection to one QEMU. It must not be used by several goroutines.
type Client struct {
	conn     net.Conn
	received *json.Decoder
}

// Error is an error response of QEMU.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

// Error returns the description and the class.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Desc, e.Class) }

// message is a greeting, an event, or a response to a command.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Event    string          `json:"event"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
}

// command is a command in the form in which QEMU expects it.
type command struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

// Dial connects to the unix socket at path and negotiates capabilities. QEMU serves one
// client at a time: its greeting comes after the previous client has closed the connection.
func Dial(ctx context.Context, path string) (*Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, received: json.NewDecoder(io.LimitReader(conn, maxReceived))}
	if err := c.negotiate(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("negotiate: %w", err)
	}
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Execute sends a command and decodes its response into result, unless that is nil. After
// an error that is not an *Error, the client can only be closed.
func (c *Client) Execute(ctx context.Context, name string, arguments, result any) error {
	if err := c.execute(ctx, name, arguments, result); err != nil {
		return fmt.Errorf("execute %s: %w", name, err)
	}
	return nil
}

func (c *Client) execute(ctx context.Context, name string, arguments, result any) error {
	defer c.interrupt(ctx)()
	data, err := json.Marshal(command{Execute: name, Arguments: arguments})
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(append(data, '\n')); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	for {
		m, err := c.receive(ctx)
		switch {
		case err != nil:
			return err
		case m.Error != nil:
			return m.Error
		case m.Return == nil:
			continue // an event
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Return, result)
	}
}

// negotiate waits for the greeting and leaves the mode in which other commands fail.
func (c *Client) negotiate(ctx context.Context) error {
	stop := c.interrupt(ctx)
	m, err := c.receive(ctx)
	stop()
	if err != nil {
		return err
	}
	if m.Greeting == nil {
		return errors.New("the peer does not speak QMP")
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

func (c *Client) receive(ctx context.Context) (m message, err error) {
	if err := c.received.Decode(&m); err != nil {
		return m, errors.Join(ctx.Err(), err)
	}
	return m, nil
}

// interrupt closes the connection when ctx is done before the returned function is called.
func (c *Client) interrupt(ctx context.Context) (stop func()) {
	cancel := context.AfterFunc(ctx, func() { c.conn.Close() })
	return func() { cancel() }
}
