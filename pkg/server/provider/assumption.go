// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// Assumption is what the servers rely on although it is a property of a service of others, and a
// question to the service whose answer shows whether it holds.
type Assumption struct {
	// Subject is what it is about. nstance-admin provider check has a list of all subjects.
	Subject string
	// Question distinguishes the questions of a subject. It may be empty if there is one.
	Question string
	// Expected is what the servers rely on.
	Expected string
	// Source is the page of the vendor that says so, or empty if no page was found.
	Source string
	// Ask asks the service. The error is a NotAsked if the question cannot be asked.
	Ask func(ctx context.Context, t *Trial) (Answer, error)
}

// Answer is what a service has responded.
type Answer struct {
	Text string
	// Differs is true if it is not as expected.
	Differs bool
}

// Answered returns an answer that is as expected if agrees is true.
func Answered(agrees bool, format string, args ...any) (Answer, error) {
	return Answer{Text: fmt.Sprintf(format, args...), Differs: !agrees}, nil
}

// NotAsked is the reason why a question was not asked.
type NotAsked string

// Error returns the reason.
func (n NotAsked) Error() string { return string(n) }

// Trial is what questions may use: the instance of a check, which runs meanwhile, and more
// instances if they need them. Everything belongs to the shard of the check.
type Trial struct {
	// Spec is the request for the instance of the check, and VM the instance.
	Spec Spec
	VM   instance.VM
	// Subnets are the subnets of the shard.
	Subnets []string
	// Balancers are the load balancers that the instances may be registered with, one part each.
	Balancers []LoadBalancer
	// New returns the request for another instance. From then on the check removes the instance.
	New func(ctx context.Context) (Spec, error)
	// Created reports the provider id of an instance of New. The check waits until the instance is
	// shown, or can no longer be hidden.
	Created func(id, providerID string)
	// Forget reports that an instance of New certainly does not exist.
	Forget func(id string)
}

// Examination has the questions about a service.
type Examination struct {
	Assumptions []Assumption
	// CleanUp removes what questions have left apart from instances, also the questions of a process
	// that was killed, and returns its names. It is nil if questions leave nothing.
	CleanUp func(ctx context.Context) (removed []string, err error)
}

// Examiner is implemented by the options of a provider that relies on a service of others.
type Examiner interface {
	// Examine returns the questions to the service. It sends no request. The shard is the shard of a
	// check.
	Examine(shard Shard) (Examination, error)
}

// BootMark returns the text that the userdata of an instance of a check writes to its console.
func BootMark(id string) string {
	return "nstance-admin provider check: " + id + " has run its userdata"
}

// answerInterval is the time between two reads while a question waits for something.
const answerInterval = time.Second

// ErrLate means that what a question waits for did not happen in time.
var ErrLate = errors.New("it did not happen in time")

// AwaitAnswer calls done until it returns true, or an error that is not passing. It returns ErrLate
// after limit, if there is a limit.
func AwaitAnswer(ctx context.Context, limit time.Duration, passing func(error) bool, done func() (bool, error)) error {
	for began := time.Now(); ; {
		finished, err := done()
		switch {
		case err != nil && !passing(err):
			return err
		case err == nil && finished:
			return nil
		case limit > 0 && time.Since(began) >= limit:
			return ErrLate
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(answerInterval):
		}
	}
}
