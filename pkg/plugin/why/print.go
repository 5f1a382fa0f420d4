// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"cmp"
	"fmt"
	"io"

	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/printing"
)

var sentences = map[Verdict]string{
	Created:   "%s is being created.",
	Drained:   "%s is being drained.",
	Deleted:   "%s is being deleted.",
	Kept:      "%s is kept.",
	Unmanaged: "%s belongs to no instance that was found. Use -A for all namespaces.",
	Unknown:   "What happens to %s is unknown.",
}

// Print writes an explanation: a sentence, what the instance is, a table of the reasons, and
// the drain.
func Print(w io.Writer, e Explanation, options printing.Options) error {
	subject := "NstanceMachine " + e.NstanceMachine
	switch {
	case e.Node != "":
		subject = "Node " + e.Node
	case e.NstanceMachine == "":
		subject = e.Name
	}
	fmt.Fprintf(w, sentences[e.Verdict]+"\n", subject)
	for _, line := range []struct{ name, value string }{
		{"pool", e.Pool}, {"shard", e.Shard}, {"instance", e.Instance}, {"provider id", e.ProviderID},
		{"NstanceMachine", e.NstanceMachine}, {"namespace", e.Namespace},
	} {
		if line.value != "" {
			fmt.Fprintf(w, "  %-15s %s\n", line.name+":", line.value)
		}
	}
	if len(e.Reasons) > 0 {
		fmt.Fprintln(w)
		table := printing.NewTable(options, printing.Column{Name: "REASON"}, printing.Column{Name: "AGE"}, printing.Column{Name: "BY"},
			printing.Column{Name: "SOURCE"}, printing.Column{Name: "MESSAGE"}, printing.Column{Name: "BY-UNKNOWN", Wide: true})
		for _, reason := range e.Reasons {
			table.Add(reason.Type, options.Age(reason.At), cmp.Or(reason.By, "<unknown>"), reason.Source.String(), reason.Message, reason.ByUnknown)
		}
		if err := table.Print(w); err != nil {
			return err
		}
	}
	if e.Drain != nil {
		fmt.Fprintln(w)
		drains.PrintDetails(w, []drains.Drain{*e.Drain}, options)
	}
	printing.PrintUnknown(w, e.Unknown)
	return nil
}
