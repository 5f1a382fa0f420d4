// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package printing writes tables as kubectl does. It uses no colors and does not depend on
// the width of the terminal, so that the output is the same in a pipe.
package printing

import (
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
)

// Options are those of kubectl get.
type Options struct {
	Wide, NoHeaders bool
	// Now is the time that ages are computed from.
	Now time.Time
}

// Age returns how long ago a time was, as kubectl does.
func (o Options) Age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(o.Now.Sub(t))
}

// Until returns how long it takes until a time.
func (o Options) Until(t time.Time) string {
	left := t.Sub(o.Now)
	if left <= 0 {
		return "now"
	}
	return "in " + duration.HumanDuration(left)
}

// Table is a table with aligned columns.
type Table struct {
	options Options
	columns []Column
	rows    [][]string
}

// Column is the header of a column. Wide columns are printed with -o wide only.
type Column struct {
	Name string
	Wide bool
}

// NewTable returns a table.
func NewTable(options Options, columns ...Column) *Table {
	return &Table{options: options, columns: columns}
}

// Add adds a row, with a cell for each column, wide ones included.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// Empty reports whether the table has no rows.
func (t *Table) Empty() bool { return len(t.rows) == 0 }

// Print writes the table.
func (t *Table) Print(w io.Writer) error {
	writer := printers.GetNewTabWriter(w)
	if !t.options.NoHeaders {
		header := make([]string, len(t.columns))
		for i, column := range t.columns {
			header[i] = column.Name
		}
		t.printRow(writer, header)
	}
	for _, row := range t.rows {
		t.printRow(writer, row)
	}
	return writer.Flush()
}

func (t *Table) printRow(w io.Writer, cells []string) {
	var printed []string
	for i, cell := range cells {
		if !t.columns[i].Wide || t.options.Wide {
			printed = append(printed, strings.ReplaceAll(cell, "\n", " "))
		}
	}
	_, _ = fmt.Fprintln(w, strings.Join(printed, "\t"))
}
