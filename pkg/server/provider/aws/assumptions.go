// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	pageIdempotency = "https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html"
	pageConsistency = "https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"
	pageRegister    = "https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_RegisterTargets.html"
)

const (
	// lateVisibility is how late a new instance may be shown without a remark.
	lateVisibility = 30 * time.Second
	// consoleDelay is how long a console may not show the end of a boot
	// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html).
	consoleDelay = 6 * time.Minute
	// absentImage has the form of the id of an image, and absentInstance the form of the id of an
	// instance. EC2 gives random ids.
	absentImage, absentInstance = "ami-00000000000000000", "i-00000000000000000"
)

var _ provider.Examiner = (*Options)(nil)

// Examine returns the questions to EC2 and Elastic Load Balancing.
func (o *Options) Examine(shard provider.Shard) (provider.Examination, error) {
	c, err := connect(shard, nil)
	if err != nil {
		return provider.Examination{}, err
	}
	return c.examine(o), nil
}

func (c connection) examine(o *Options) provider.Examination {
	e := &examination{api: c.newAPI(o), targets: c.newTargetGroups(o)}
	return provider.Examination{CleanUp: e.removeInterfaces, Assumptions: []provider.Assumption{
		{
			Subject: "zone of the subnets", Ask: e.zones,
			Expected: "each subnet of the shard is in the zone of the shard",
			Source:   "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Subnet.html",
		},
		{
			Subject: "visibility of instances", Ask: e.visibility, Source: pageConsistency,
			Expected: fmt.Sprintf("a new instance is shown by its tags and by its id after %s at the latest", visibilityDelay),
		},
		{
			Subject: "targets", Question: "an instance that is pending", Ask: e.pendingTarget, Source: pageRegister,
			Expected: "it is accepted, or refused with " + codeInvalidTarget,
		},
		{
			Subject: "client tokens", Question: "the same token and content", Ask: e.sameToken, Source: pageIdempotency,
			Expected: "the response has the first instance",
		},
		{
			Subject: "client tokens", Question: "the same token with other userdata", Ask: e.otherContent, Source: pageIdempotency,
			Expected: codeTokenMismatch,
		},
		{
			Subject: "client tokens", Question: "after a launch that was refused", Ask: e.refusedToken,
			Expected: "other content is launched, or refused with " + codeTokenMismatch + ": both are handled",
		},
		{
			Subject: "client tokens", Question: "after the termination", Ask: e.terminatedToken, Source: pageIdempotency,
			Expected: codeTokenTerminated + ", or the terminated instance",
		},
		{
			Subject: "targets", Question: "an instance that was terminated, and one that does not exist", Ask: e.absentTargets,
			Expected: "the deregistration succeeds, or is refused with " + codeInvalidTarget,
			Source:   "https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DeregisterTargets.html",
		},
		{
			Subject: "spot instances", Ask: e.spot,
			Expected: "a spot instance is launched with the tags of the instance and of its request",
			Source:   "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-requests.html",
		},
		{
			Subject: "first boot", Ask: e.boot, Source: "https://cloudinit.readthedocs.io/en/latest/reference/datasources/ec2.html",
			Expected: "the image runs the userdata",
		},
		{
			Subject: "detached network interfaces", Ask: e.detached,
			Expected: "after a detachment with force the interface can be attached at the same index, or another index is used",
		},
	}}
}

// examination asks the questions. Those about one launch follow each other.
type examination struct {
	api     *API
	targets *targetGroups

	// spec is the request of the launch that several questions are about, and id the instance. id is
	// empty if there was no launch, or if the instance was terminated.
	spec provider.Spec
	id   string
}

var errNoLaunch = provider.NotAsked("the launch for it has failed")

// input returns the call that launches the instance of a request with its first token.
func (e *examination) input(ctx context.Context, spec provider.Spec) (*ec2.RunInstancesInput, error) {
	spec.Market = market(spec)
	return e.api.input(ctx, cloud.Request{Spec: spec, Token: spec.ID})
}

// launch makes a call that launches an instance, even if ctx is done meanwhile, so that the id of
// the instance is known. It returns the code if EC2 has refused the call.
func (e *examination) launch(ctx context.Context, t *provider.Trial, spec provider.Spec, input *ec2.RunInstancesInput) (id, code string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	output, err := e.api.calls.runInstances(ctx, input)
	switch {
	case isRefusal(err):
		return "", codeOf(err), nil
	case err != nil:
		return "", "", err
	case len(output.Instances) != 1:
		return "", "", fmt.Errorf("the response to the launch has %d instances", len(output.Instances))
	}
	vm := e.api.vm(&output.Instances[0], spec.ID)
	t.Created(spec.ID, vm.ProviderID)
	return awssdk.ToString(output.Instances[0].InstanceId), "", nil
}

// launchNew launches another instance of the check.
func (e *examination) launchNew(ctx context.Context, t *provider.Trial, change func(*provider.Spec)) (spec provider.Spec, id, code string, err error) {
	if spec, err = t.New(ctx); err != nil {
		return spec, "", "", err
	}
	change(&spec)
	input, err := e.input(ctx, spec)
	if err != nil {
		t.Forget(spec.ID)
		return spec, "", "", err
	}
	if id, code, err = e.launch(ctx, t, spec, input); code != "" {
		t.Forget(spec.ID)
	}
	return spec, id, code, err
}

// launchAgain repeats the launch of an instance, maybe with other content.
func (e *examination) launchAgain(ctx context.Context, t *provider.Trial, spec provider.Spec) (id, code string, err error) {
	input, err := e.input(ctx, spec)
	if err != nil {
		return "", "", err
	}
	return e.launch(ctx, t, spec, input)
}

func (e *examination) zones(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	output, err := e.api.calls.describeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: t.Subnets})
	if err != nil {
		return provider.Answer{}, err
	}
	var texts []string
	agrees := len(output.Subnets) == len(t.Subnets)
	for _, subnet := range output.Subnets {
		zone := awssdk.ToString(subnet.AvailabilityZone)
		texts = append(texts, awssdk.ToString(subnet.SubnetId)+" is in "+zone)
		agrees = agrees && zone == e.api.shard.Zone
	}
	slices.Sort(texts)
	return provider.Answered(agrees, "the shard is in %s; %s", e.api.shard.Zone, strings.Join(texts, ", "))
}

func (e *examination) visibility(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	spec, id, code, err := e.launchNew(ctx, t, func(*provider.Spec) {})
	if err != nil {
		return provider.Answer{}, err
	}
	if code != "" {
		return provider.Answer{}, fmt.Errorf("the launch was refused: %s", code)
	}
	e.spec, e.id = spec, id
	began := time.Now()
	shown := map[string]time.Duration{}
	for _, by := range []struct {
		name  string
		input *ec2.DescribeInstancesInput
	}{
		{"id", &ec2.DescribeInstancesInput{InstanceIds: []string{id}}},
		{"tags", &ec2.DescribeInstancesInput{Filters: append(e.api.filters(), filter("tag:"+tagInstanceID, spec.ID))}},
	} {
		err := wait(ctx, visibilityDelay, func() (bool, error) {
			output, err := e.api.calls.describeInstances(ctx, by.input)
			if codeOf(err) == codeNotFound {
				return false, nil
			}
			return err == nil && len(instancesOf(output)) == 1, err
		})
		if errors.Is(err, provider.ErrLate) {
			return provider.Answered(false, "after %s %s is not shown by its %s", visibilityDelay, id, by.name)
		}
		if err != nil {
			return provider.Answer{}, err
		}
		shown[by.name] = time.Since(began).Round(100 * time.Millisecond)
	}
	remark := ""
	if max(shown["id"], shown["tags"]) > lateVisibility {
		remark = ", which is late"
	}
	return provider.Answered(true, "%s was shown by its id after %s and by its tags after %s%s", id, shown["id"], shown["tags"], remark)
}

func (e *examination) pendingTarget(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	group, err := e.group(t)
	if err != nil {
		return provider.Answer{}, err
	}
	if e.id == "" {
		return provider.Answer{}, errNoLaunch
	}
	state := "is not shown"
	if output, err := e.api.calls.describeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{e.id}}); err == nil && len(instancesOf(output)) == 1 {
		state = "is " + stateOf(instancesOf(output)[0])
	}
	_, err = e.targets.register(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &group.arn, Targets: group.targets([]string{e.id})})
	if err != nil && codeOf(err) == "" {
		return provider.Answer{}, err
	}
	_, removal := e.targets.deregister(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &group.arn, Targets: group.targets([]string{e.id})})
	if removal != nil && codeOf(removal) != codeInvalidTarget {
		return provider.Answer{}, removal
	}
	return provider.Answered(err == nil || codeOf(err) == codeInvalidTarget, "%s %s: %s", e.id, state, resultOf(err))
}

// group returns a target group that the check may use.
func (e *examination) group(t *provider.Trial) (targetGroup, error) {
	if len(t.Balancers) == 0 {
		return targetGroup{}, provider.NotAsked("--load-balancers is not set")
	}
	return e.targets.targetGroup(t.Balancers[0])
}

// stateOf returns the name of an instance's state.
func stateOf(i types.Instance) string {
	if i.State == nil {
		return "unknown"
	}
	return string(i.State.Name)
}

// resultOf describes the result of a call.
func resultOf(err error) string {
	if err == nil {
		return "accepted"
	}
	return codeOf(err)
}

func (e *examination) absentTargets(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	group, err := e.group(t)
	if err != nil {
		return provider.Answer{}, err
	}
	if e.spec.ID == "" {
		return provider.Answer{}, errNoLaunch
	}
	agrees := true
	var texts []string
	for _, id := range []string{e.id, absentInstance} {
		_, err := e.targets.deregister(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &group.arn, Targets: group.targets([]string{id})})
		if err != nil && codeOf(err) == "" {
			return provider.Answer{}, err
		}
		agrees = agrees && (err == nil || codeOf(err) == codeInvalidTarget)
		texts = append(texts, id+": "+resultOf(err))
	}
	return provider.Answered(agrees, "%s", strings.Join(texts, ", "))
}

func (e *examination) sameToken(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	if e.id == "" {
		return provider.Answer{}, errNoLaunch
	}
	id, code, err := e.launchAgain(ctx, t, e.spec)
	if err != nil {
		return provider.Answer{}, err
	}
	return provider.Answered(id == e.id, "%s%s, the first instance is %s", id, code, e.id)
}

func (e *examination) otherContent(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	if e.id == "" {
		return provider.Answer{}, errNoLaunch
	}
	other := e.spec
	other.Userdata = append(slices.Clone(other.Userdata), "# other\n"...)
	id, code, err := e.launchAgain(ctx, t, other)
	if err != nil {
		return provider.Answer{}, err
	}
	return provider.Answered(code == codeTokenMismatch, "%s%s", id, code)
}

func (e *examination) refusedToken(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	spec, err := t.New(ctx)
	if err != nil {
		return provider.Answer{}, err
	}
	input, err := e.input(ctx, spec)
	if err != nil {
		t.Forget(spec.ID)
		return provider.Answer{}, err
	}
	if input.ImageId == nil {
		t.Forget(spec.ID)
		return provider.Answer{}, provider.NotAsked("the launch template selects the image, so no other one can be refused")
	}
	image := input.ImageId
	input.ImageId = awssdk.String(absentImage)
	id, first, err := e.launch(ctx, t, spec, input)
	if err != nil {
		return provider.Answer{}, err
	}
	if id != "" {
		return provider.Answered(false, "image %s, which does not exist, was launched as %s", absentImage, id)
	}
	input.ImageId = image
	id, second, err := e.launch(ctx, t, spec, input)
	if err != nil {
		return provider.Answer{}, err
	}
	if id == "" {
		t.Forget(spec.ID)
	}
	return provider.Answered(id != "" || second == codeTokenMismatch, "%s, and then %s%s", first, id, second)
}

func (e *examination) terminatedToken(ctx context.Context, t *provider.Trial) (provider.Answer, error) {
	if e.id == "" {
		return provider.Answer{}, errNoLaunch
	}
	if _, err := e.api.calls.terminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{e.id}}); err != nil {
		return provider.Answer{}, err
	}
	err := wait(ctx, 0, func() (bool, error) {
		output, err := e.api.calls.describeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{e.id}})
		if err != nil {
			return false, err
		}
		all := instancesOf(output)
		return len(all) == 1 && stateOf(all[0]) == string(types.InstanceStateNameTerminated), nil
	})
	if err != nil {
		return provider.Answer{}, err
	}
	id, code, err := e.launchAgain(ctx, t, e.spec)
	if err != nil {
		return provider.Answer{}, err
	}
	return provider.Answered(code == codeTokenTerminated || id == e.id, "%s%s, the terminated instance is %s", id, code, e.id)
}
