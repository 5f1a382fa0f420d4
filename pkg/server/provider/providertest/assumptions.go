// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Trial are the instances that questions have requested, by id, with their provider ids. Those that
// certainly do not exist are left out.
type Trial struct {
	provider.Trial
	Requested map[string]string
}

// NewTrial returns a trial of an instance that runs. spec returns the request for another instance.
func NewTrial(own provider.Spec, vm instance.VM, spec func() provider.Spec) *Trial {
	t := &Trial{Requested: map[string]string{}}
	t.Trial = provider.Trial{
		Spec: own, VM: vm, Subnets: []string{own.Subnet},
		New: func(context.Context) (provider.Spec, error) {
			s := spec()
			t.Requested[s.ID] = ""
			return s, nil
		},
		Created: func(id, providerID string) { t.Requested[id] = providerID },
		Forget:  func(id string) { delete(t.Requested, id) },
	}
	return t
}

// Ask asks all questions and returns their results by subject and question: "as expected",
// "differs", "not checked" or "no answer", a colon, and the answer, the reason or the error. It
// removes what the questions have left, apart from instances.
func Ask(t *testing.T, e provider.Examination, trial *Trial) map[string]string {
	t.Helper()
	results := map[string]string{}
	for _, assumption := range e.Assumptions {
		title := assumption.Subject
		if assumption.Question != "" {
			title += ", " + assumption.Question
		}
		assert.NotContains(t, results, title, "questions")
		assert.NotEmpty(t, assumption.Expected, title)
		answer, err := assumption.Ask(t.Context(), &trial.Trial)
		reason, notAsked := errors.AsType[provider.NotAsked](err)
		switch {
		case notAsked:
			results[title] = "not checked: " + string(reason)
		case err != nil:
			results[title] = "no answer: " + err.Error()
		case answer.Differs:
			results[title] = "differs: " + answer.Text
		default:
			results[title] = "as expected: " + answer.Text
		}
	}
	if e.CleanUp != nil {
		if _, err := e.CleanUp(t.Context()); err != nil {
			t.Errorf("clean up: %v", err)
		}
	}
	return results
}
