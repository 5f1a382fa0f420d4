// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/change"
	"nstance.dev/operator/pkg/plugin/gather"
	"nstance.dev/operator/pkg/plugin/plan"
)

// rotateOptions are the flags of the command rotate.
type rotateOptions struct {
	*options
	pause, resume, dryRun, wait bool
	timeout                     time.Duration
}

// pollInterval is how often --wait reads the pool.
const pollInterval = 2 * time.Second

func newRotate(o *options) *cobra.Command {
	r := &rotateOptions{options: o}
	command := &cobra.Command{
		Use:   "rotate POOL",
		Short: "Replace all instances of a pool as its policy says, or pause that",
		Long: `Replace all instances of a pool as its policy says, or pause that.

spec.rotation.after of the pool is set to the present time: instances from before are outdated, and
are replaced within surge, windows and all else that spec.rotation says. With --pause or --resume
spec.rotation.paused is set. The output has the call of kubectl that does the same.

Exit codes: 0 if the pool was changed, and with --wait if no instance is outdated any more; 3 if the
rotation does not go on until a user acts; those of plan with --dry-run; 1 for any other
error.`,
		Example: `  # Replace all instances, and wait for the end
  kubectl nstance rotate workers --wait

  # What would be replaced, and how?
  kubectl nstance rotate workers --dry-run

  # Stop a rotation
  kubectl nstance rotate workers --pause`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: o.completeFirst(poolNames),
		RunE:              func(command *cobra.Command, args []string) error { return r.run(command.Context(), args[0]) },
	}
	command.Flags().BoolVar(&r.pause, "pause", false, "replace no further instance")
	command.Flags().BoolVar(&r.resume, "resume", false, "end a pause")
	command.Flags().BoolVar(&r.dryRun, "dry-run", false, "show the plan, and change nothing")
	command.Flags().BoolVar(&r.wait, "wait", false, "wait until no instance is outdated, or the rotation stops")
	command.Flags().DurationVar(&r.timeout, "timeout", 0, "how long to wait, 0 for as long as it takes")
	command.MarkFlagsMutuallyExclusive("pause", "resume")
	command.MarkFlagsMutuallyExclusive("pause", "wait")
	command.MarkFlagsMutuallyExclusive("dry-run", "wait")
	return command
}

func (r *rotateOptions) run(ctx context.Context, name string) error {
	if r.allNamespaces {
		return errors.New("a rotation is of one pool: -A cannot be used")
	}
	g, err := r.gatherer()
	if err != nil {
		return err
	}
	pool, err := g.Pool(ctx, name)
	if err != nil {
		return err
	}
	made, err := r.change(pool)
	if err != nil {
		return err
	}
	changed, err := g.ChangePool(ctx, name, made.Patch(), r.dryRun)
	if err != nil {
		return err
	}
	if r.dryRun {
		return r.showPlan(ctx, g, plan.Options{Pool: name, Changed: changed})
	}
	err = r.print(made, nil, func(w io.Writer) error { return change.Print(w, made) })
	if err != nil || !r.wait {
		return err
	}
	return r.await(ctx, g, changed)
}

func (r *rotateOptions) change(pool *v1beta1.NstanceMachinePool) (change.Change, error) {
	switch {
	case r.pause:
		return change.Pause(pool), nil
	case r.resume:
		return change.Resume(pool)
	}
	return change.Rotate(pool, time.Now()), nil
}

// await waits until the rotation of a pool ends or stops. The progress is printed beside the output,
// whose format may be JSON.
func (r *rotateOptions) await(ctx context.Context, g *gather.Gatherer, changed *v1beta1.NstanceMachinePool) error {
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	pool, printed := changed, ""
	for {
		rollout := change.RolloutOf(pool, changed.Generation)
		if rollout.Text != printed {
			printed = rollout.Text
			_, _ = fmt.Fprintf(r.streams.ErrOut, "Pool %s: %s\n", pool.Name, rollout.Text)
		}
		switch {
		case rollout.Ended:
			return nil
		case rollout.Stopped:
			return errBlocked
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the rotation of pool %s: %w", pool.Name, ctx.Err())
		case <-time.After(pollInterval):
		}
		current, err := g.Pool(ctx, pool.Name)
		if err != nil {
			return fmt.Errorf("wait for the rotation of pool %s: %w", pool.Name, err)
		}
		pool = current
	}
}
