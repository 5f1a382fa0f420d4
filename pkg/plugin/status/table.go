// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"nstance.dev/operator/pkg/base/terminal"
)

// PrintOptions are the options of a table, as of kubectl get. A table has no colors and does
// not depend on the width of the terminal, so that the output is the same in a pipe.
type PrintOptions struct {
	Wide, NoHeaders bool
	// Now is the time from which ages are computed.
	Now time.Time
}

// Age returns how long ago a time was, as kubectl does.
func (o PrintOptions) Age(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(o.Now.Sub(t))
}

// Until returns how long it takes until a time.
func (o PrintOptions) Until(t time.Time) string {
	left := t.Sub(o.Now)
	if left <= 0 {
		return "now"
	}
	return "in " + duration.HumanDuration(left)
}

// Table is a table with aligned columns.
type Table struct {
	options PrintOptions
	columns []Column
	rows    [][]string
}

// Column is the header of a column. Wide columns are printed with -o wide only.
type Column struct {
	Name string
	Wide bool
}

// NewTable returns a table without rows.
func NewTable(options PrintOptions, columns ...Column) *Table {
	return &Table{options: options, columns: columns}
}

// Add adds a row, with a cell for each column, including the wide columns.
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
			printed = append(printed, terminal.Line(cell))
		}
	}
	_, _ = fmt.Fprintln(w, strings.Join(printed, "\t"))
}

// PrintUnknown writes a section with the objects that could not be read.
func PrintUnknown(w io.Writer, unknown []string) {
	if len(unknown) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nUNKNOWN")
	for _, why := range unknown {
		_, _ = fmt.Fprintln(w, "unknown: "+why)
	}
}
