// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"io"
	"strings"
	"text/tabwriter"
)

// table is a table with aligned columns.
type table struct {
	rows []string
}

func newTable(columns ...string) *table {
	t := &table{}
	t.add(columns...)
	return t
}

func (t *table) add(cells ...string) {
	t.rows = append(t.rows, strings.Join(cells, "\t")+"\n")
}

// print writes the table unless it has no rows but the header.
func (t *table) print(w io.Writer) error {
	if len(t.rows) == 1 {
		return nil
	}
	columns := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range t.rows {
		if _, err := io.WriteString(columns, row); err != nil {
			return err
		}
	}
	return columns.Flush()
}
