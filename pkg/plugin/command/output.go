// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"encoding/json"
	"io"

	"sigs.k8s.io/yaml"
)

// print writes a structure as --output says: as JSON, as YAML, or by a function.
func (o *options) print(structure any, unknown []string, table func(io.Writer) error) error {
	if err := o.write(structure, table); err != nil {
		return err
	}
	if len(unknown) > 0 {
		return errIncomplete
	}
	return nil
}

func (o *options) write(structure any, table func(io.Writer) error) error {
	var data []byte
	var err error
	switch o.output {
	case outputJSON:
		if data, err = json.MarshalIndent(structure, "", "    "); err == nil {
			data = append(data, '\n')
		}
	case outputYAML:
		data, err = yaml.Marshal(structure)
	default:
		return table(o.streams.Out)
	}
	if err != nil {
		return err
	}
	_, err = o.streams.Out.Write(data)
	return err
}
