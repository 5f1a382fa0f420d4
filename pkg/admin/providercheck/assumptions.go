// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// subject is a subject of assumptions.
type subject struct {
	name string
	// of is the provider, or the kind of storage or of secrets, whose subject it is. It is empty if
	// it is the subject of every provider with a console.
	of string
}

// The names of providers. Their packages are not imported, so that a program can leave out AWS.
const (
	ofAWS     = "aws"
	ofGoogle  = "google"
	ofProxmox = "proxmox"
)

// subjects are all subjects, in the order of their numbers (docs/providers.md#assumptions).
var subjects = []subject{
	{subjectReads, backend.GCS},
	{subjectWrites, backend.S3},
	{"zone of the subnets", ofAWS},
	{"client tokens", ofAWS},
	{"visibility of instances", ofAWS},
	{"detached network interfaces", ofAWS},
	{"spot instances", ofAWS},
	{"request ids", ofGoogle},
	{"request ids of failed operations", ofGoogle},
	{"missing machines", ofGoogle},
	{"lists by labels", ofGoogle},
	{"free addresses", ofGoogle},
	{"long descriptions", ofGoogle},
	{"early deletions", ofGoogle},
	{"preemptions", ofGoogle},
	{"network endpoints", ofGoogle},
	{"alias ranges", ofGoogle},
	{"instance templates", ofGoogle},
	{subjectSecrets, config.SecretsInGoogle},
	{"tags", ofProxmox},
	{"used VMIDs", ofProxmox},
	{"texts of errors", ofProxmox},
	{"other nodes", ofProxmox},
	{"targets", ofAWS},
	{"first boot", ""},
}

// Steps of the questions. stepRemoveAnswers is skipped if nothing was created.
const (
	stepRemoveFormerAnswers = "remove what earlier questions have left"
	stepRemoveAnswers       = "remove what the questions have created"
)

// outcome is a question and its answer.
type outcome struct {
	provider.Assumption
	answer provider.Answer
	err    error
}

// examine asks all questions while the instance of a check runs. A question without an answer
// is no error, and an answer that differs is reported at the end.
func (c *check) examine(ctx context.Context, spec provider.Spec) error {
	if len(c.examinations) == 0 {
		return nil
	}
	c.examined = true
	if err := c.step(ctx, stepRemoveFormerAnswers, c.removeAnswers); err != nil {
		return err
	}
	if c.skipAssumptions {
		return nil
	}
	trial := c.trial(spec)
	for _, examination := range c.examinations {
		for _, assumption := range examination.Assumptions {
			if err := c.ask(ctx, assumption, trial); err != nil {
				return err
			}
		}
	}
	return c.step(ctx, stepRemoveAnswers, func(ctx context.Context) (string, error) {
		removed, err := c.removeAnswers(ctx)
		if err != nil {
			return "", err
		}
		more := slices.Sorted(maps.Keys(c.existing))
		more = slices.DeleteFunc(more, func(id string) bool { return id == spec.ID })
		if len(more) == 0 {
			return removed, nil
		}
		// The session does not know what the questions have requested.
		if err := c.restart(ctx); err != nil {
			return "", err
		}
		if err := c.removeWithSession(ctx, more); err != nil {
			return "", err
		}
		for _, id := range more {
			delete(c.existing, id)
		}
		return fmt.Sprintf("%d instances; %s", len(more), removed), nil
	})
}

// trial returns what the questions may use.
func (c *check) trial(spec provider.Spec) *provider.Trial {
	t := &provider.Trial{
		Spec: spec,
		VM:   c.existing[spec.ID],
		New: func(ctx context.Context) (provider.Spec, error) {
			more, err := c.spec(ctx)
			if err == nil {
				c.existing[more.ID], c.unlisted[more.ID] = instance.VM{ID: more.ID, Group: checkGroup}, true
			}
			return more, err
		},
		Created: func(id, providerID string) {
			c.existing[id] = instance.VM{ID: id, ProviderID: providerID, Group: checkGroup}
			if len(c.balancers) > 0 {
				c.targets[id] = c.existing[id]
			}
		},
		Forget: func(id string) { delete(c.existing, id) },
	}
	pools := c.config.Shard.SubnetPools
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		t.Subnets = append(t.Subnets, pools[name]...)
	}
	slices.Sort(t.Subnets)
	t.Subnets = slices.Compact(t.Subnets)
	for _, balancer := range c.balancers {
		t.Balancers = append(t.Balancers, partsOf(balancer)...)
		c.targets[spec.ID] = t.VM
	}
	return t
}

// ask asks one question and prints the answer. The error is not nil only if ctx is done.
func (c *check) ask(ctx context.Context, assumption provider.Assumption, t *provider.Trial) error {
	c.print("ask about %s ... ", titleOf(assumption))
	began := time.Now()
	result := outcome{Assumption: assumption, err: context.Cause(ctx)}
	if result.err == nil {
		limited, cancel := context.WithTimeoutCause(ctx, c.stepTimeout, fmt.Errorf("it took longer than %s", c.stepTimeout))
		defer cancel()
		result.answer, result.err = assumption.Ask(limited, t)
	}
	if ctx.Err() != nil && result.err != nil {
		c.print("FAILED: %v\n", context.Cause(ctx))
		return fmt.Errorf("ask about %s: %w", titleOf(assumption), context.Cause(ctx))
	}
	c.outcomes = append(c.outcomes, result)
	c.print("%s, %s\n", result.verdict(), time.Since(began).Round(10*time.Millisecond))
	return nil
}

func titleOf(a provider.Assumption) string {
	if a.Question == "" {
		return a.Subject
	}
	return a.Subject + ", " + a.Question
}

// verdict returns whether the answer is as expected.
func (o outcome) verdict() string {
	reason, notAsked := errors.AsType[provider.NotAsked](o.err)
	switch {
	case notAsked:
		return "not checked: " + string(reason)
	case o.err != nil:
		return "no answer: " + strings.ReplaceAll(o.err.Error(), "\n", "; ")
	case o.answer.Differs:
		return "DIFFERS"
	}
	return "as expected"
}

// removeAnswers removes what questions have left apart from instances.
func (c *check) removeAnswers(ctx context.Context) (string, error) {
	var all []string
	var errs []error
	for _, examination := range c.examinations {
		if examination.CleanUp == nil {
			continue
		}
		removed, err := examination.CleanUp(ctx)
		all, errs = append(all, removed...), append(errs, err)
	}
	return fmt.Sprintf("%d other objects", len(all)), errors.Join(errs...)
}

// report prints what the servers rely on beside what was answered, for all subjects. It returns
// an error if an answer differs.
func (c *check) report() error {
	if c.skipAssumptions {
		return nil
	}
	c.print("\nWhat the servers rely on, and what was answered:\n")
	differing := 0
	for n, subject := range subjects {
		c.print("%2d. %s: %s\n", n+1, cmp.Or(subject.of, "every cloud"), subject.name)
		asked := 0
		for _, result := range c.outcomes {
			if result.Subject != subject.name {
				continue
			}
			asked++
			if result.Question != "" {
				c.print("    question:   %s\n", result.Question)
			}
			c.print("    relied on:  %s\n    source:     %s\n", result.Expected, cmp.Or(result.Source, "not documented"))
			if result.err == nil {
				c.print("    answer:     %s\n", result.answer.Text)
			}
			c.print("    result:     %s\n", result.verdict())
			if result.err == nil && result.answer.Differs {
				differing++
			}
		}
		if asked == 0 {
			c.print("    result:     not checked: %s\n", c.whyNot(subject))
		}
	}
	c.print("\n")
	if differing > 0 {
		return fmt.Errorf("%d answers differ from what the servers rely on", differing)
	}
	return nil
}

// whyNot returns why there was no question about a subject.
func (c *check) whyNot(s subject) string {
	used := c.config.Shard.Infra.Provider
	switch s.of {
	case backend.GCS, backend.S3:
		if c.storageName == "" {
			return "--storage-bucket is not set"
		}
		if c.storageName != s.of {
			return "--storage is " + c.storageName
		}
	case config.SecretsInGoogle:
		if c.config.Secrets.Provider != s.of {
			return "cluster.secrets.provider is " + c.config.Secrets.Provider
		}
	case "":
		if !slices.Contains([]string{ofAWS, ofGoogle, ofProxmox}, used) {
			return "provider " + used + " has no service of others"
		}
	default:
		if s.of != used {
			return "the provider is " + used
		}
	}
	return "the check has ended before"
}
