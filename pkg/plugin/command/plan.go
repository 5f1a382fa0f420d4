// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"nstance.dev/operator/pkg/plugin/gather"
	"nstance.dev/operator/pkg/plugin/plan"
)

// planOptions are the flags of the command plan.
type planOptions struct {
	*options
	replicas     int32
	file         string
	fieldManager string
}

// errBlocked is the error of a plan that cannot be carried out now. The output has the reasons.
var errBlocked = errors.New("something blocks the plan")

func newPlan(o *options) *cobra.Command {
	p := &planOptions{options: o}
	command := &cobra.Command{
		Use:   "plan [POOL]",
		Short: "Show what would happen with other replicas, or with another configuration",
		Long: `Show what would happen with other replicas, or with another configuration.

The sizes of the shards are computed by the functions of the operator, from the objects. The
instances that leave are named in the order that the shards report. Nothing is changed: -f applies
a file as a dry run, for which the user needs the right to patch pools.

Exit codes: 0 if nothing blocks the plan, 3 if something blocks it, 2 if something is unknown, 1 for
any other error.`,
		Example: `  # What leaves if the pool is scaled to 4?
  kubectl nstance plan workers --replicas=4

  # What does a change of the pool do?
  kubectl nstance plan -f pool.yaml`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completeFirst(poolNames),
		RunE: func(command *cobra.Command, args []string) error {
			return p.run(command.Context(), first(args), command.Flags().Changed("replicas"))
		},
	}
	command.Flags().Int32Var(&p.replicas, "replicas", 0, "the replicas of the MachinePool; without the flag, those of the file or the present replicas")
	command.Flags().StringVarP(&p.file, "filename", "f", "", "file with the pool, the MachinePool, or both, as they would be applied; - is the standard input")
	command.Flags().StringVar(&p.fieldManager, "field-manager", "kubectl", "name of the field manager that would apply the file")
	return command
}

func (p *planOptions) run(ctx context.Context, pool string, scaled bool) error {
	if p.allNamespaces {
		return errors.New("a plan is for one pool: -A cannot be used")
	}
	if scaled && p.replicas < 0 {
		return fmt.Errorf("--replicas must not be negative, and is %d", p.replicas)
	}
	g, err := p.gatherer()
	if err != nil {
		return err
	}
	planned := plan.Options{Pool: pool}
	if p.file != "" {
		if err := p.dryRun(ctx, g, &planned); err != nil {
			return err
		}
	}
	if planned.Pool == "" {
		return errors.New("name a pool, or a file with -f")
	}
	if scaled {
		planned.Replicas = &p.replicas
	}
	return p.showPlan(ctx, g, planned)
}

// showPlan prints a plan. The error is errBlocked if it cannot be carried out now.
func (o *options) showPlan(ctx context.Context, g *gather.Gatherer, planned plan.Options) error {
	snapshot, err := g.Status(ctx, planned.Pool)
	if err != nil {
		return err
	}
	snapshot.Now = time.Now()
	result, err := plan.Build(snapshot, planned)
	if err != nil {
		return err
	}
	if nodes := result.LeavingNodes(); len(nodes) > 0 {
		g.ReadPods(ctx, snapshot, nodes)
		if result, err = plan.Build(snapshot, planned); err != nil {
			return err
		}
	}
	err = o.print(result, result.Unknown, func(w io.Writer) error { return plan.Print(w, result, o.printing(snapshot.Now)) })
	if err == nil && result.IsBlocked() {
		return errBlocked
	}
	return err
}

// dryRun reads the file of -f, and the objects as they would be.
func (p *planOptions) dryRun(ctx context.Context, g *gather.Gatherer, planned *plan.Options) error {
	in := p.streams.In
	if p.file != "-" {
		file, err := os.Open(p.file)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	wanted, err := gather.ReadWanted(in)
	if err != nil {
		return fmt.Errorf("%s: %w", p.file, err)
	}
	if planned.Pool != "" && planned.Pool != wanted.Pool() {
		return fmt.Errorf("%s describes pool %q, and the plan is for pool %q", p.file, wanted.Pool(), planned.Pool)
	}
	planned.Pool = wanted.Pool()
	planned.Changed, planned.Replicas, err = g.DryRun(ctx, wanted, p.fieldManager)
	return err
}
